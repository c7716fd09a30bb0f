"""Stand-ins for a rehearsal: made-up files in the formats of the published ones, and a grader. The model is the demo.

The files are in the folder `rehearsal`. MAUVE needs the twenty items of ASQA. MT-RAG has a conversation in each of its
four domains. Every other question of them stands alone, and every other one has no passage that a search finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any

FILES = Path(__file__).with_name("rehearsal")
"""Files under the names of the published ones."""
_OFFERED = re.compile(r"Reply with one word: (\w+).* or (?:else )?(\w+)\.")
_CONTEXT_ID = re.compile(r"Context ID: (\S+)")


class StandInGrader(BaseHTTPRequestHandler):
    """A chat model that grades with the first and the last word in turn, or 07, and answers with a citation.

    It cites the first passage; asked for reasons, also what was not given and, as its reason, the second passage.
    """

    place = cycle((1, 2))  # of the word in `_OFFERED`

    def do_POST(self) -> None:
        """Answer a chat completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = str(body["messages"][-1]["content"])
        first, second, *_ = [*_CONTEXT_ID.findall(question), "1", "2"]
        text = "07" if "two digits" in question else f"It is Paris [{first}]."
        if "You are also asked" in question:
            text = f"Paris on the Seine [{first}] [none].\n\nSo says [{second}]."
        if offered := _OFFERED.search(question):
            text = offered[next(self.place)]
        choice = {
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        reply = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serve_grader() -> Iterator[str]:
    """Serve the stand-in of the grader on this machine; yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StandInGrader) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
