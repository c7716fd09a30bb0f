"""An endpoint that answers like `vllm serve` with what `scripted_run.reply` says, and dies after some requests."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scripted_run import reply
from written import LIMITS

from selfrag.decoding.requests import Failed, Generate

MODELS = {"data": [{"id": "tiny", "root": "tiny", "max_model_len": LIMITS.max_model_len}]}


class AnsweringServer(ThreadingHTTPServer):
    """Answers `most` requests and is gone then; questions that `reply` fails are answered with status 500."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, most: int, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.left = most
        self.lock = threading.Lock()
        self.connections: set[Any] = set()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self.hang_up()

    def hang_up(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: AnsweringServer

    def log_message(self, *args: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        self._answer(200, MODELS)

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.left -= 1
            dead = self.server.left < 0
        if dead:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.path.endswith("abort_requests"):
            self._answer(200, {})
            return
        found = reply(Generate(tuple(sent["token_ids"]), sent["sampling_params"]["max_tokens"]))
        if isinstance(found, Failed):
            self._answer(500, {"error": {"message": found.reason}})
            return
        rows = [{"token_id": token, "logprob": -0.1, "top_logprobs": []} for token in found.token_ids]
        choice = {"token_ids": list(found.token_ids), "finish_reason": "stop", "logprobs": {"content": rows}}
        self._answer(200, {"choices": [{**choice, "index": 0, "stop_reason": None}], "usage": {}})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
