"""Make the picture of the server's page in the documentation: `draw_page.py [--out docs/page.png]`."""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import sync_playwright

from scripts.command import command
from selfrag.api import SelfRAG
from selfrag.serving.app import create_app
from selfrag.serving.service import Service


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "page.png")
    parser.add_argument("--question", default="Tell me about Marie Curie.")
    given = parser.parse_args()
    rag = SelfRAG.from_pretrained(engine="transformers", dtype="float32")
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(Service(rag, name="demo")), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.1)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 1150})
        page.set_default_timeout(300_000)  # a busy machine takes minutes
        page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}")
        page.fill("#question", given.question)
        page.get_by_role("button", name="Ask").click()
        page.get_by_text("As it was decoded.").wait_for()
        page.screenshot(path=given.out)
        browser.close()
    server.should_exit = True
    thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
