"""A real HTTP server on the loopback that tests give answers to, and that ends with all its connections."""

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Loopback(ThreadingHTTPServer):
    """Begins to serve when it is made; `handler` answers."""

    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), self.handler)
        self.connections, self.accepted = set(), 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def stop(self):
        self.shutdown()
        self.server_close()
        # a handler continues answering on the connections it has
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Answering(BaseHTTPRequestHandler):
    """Keeps connections open and notes them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def setup(self):
        super().setup()
        self.server.connections.add(self.connection)
        self.server.accepted += 1

    def finish(self):
        self.server.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def answer(self, status, content, **headers):
        content = (
            content if isinstance(content, bytes) else json.dumps(content).encode()
        )
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)


def loopback(answering):
    """A server whose requests a class answers."""
    return type("Server", (Loopback,), {"handler": answering})()
