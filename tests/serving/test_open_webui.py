"""Open WebUI itself, unmodified, before our server: it needs an environment of its own (7 GiB), so CI does without.

OPEN_WEBUI=/path/to/bin/open-webui python -m pytest -m slow tests/serving/test_open_webui.py
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Running, random_rag

sys.path.append(str(Path(__file__).parents[1] / "pages"))

from browsing import browser as browser

pytestmark = pytest.mark.slow
PROGRAM = os.environ.get("OPEN_WEBUI")
QUIET = ("TITLE_GENERATION", "TAGS_GENERATION", "FOLLOW_UP_GENERATION", "OLLAMA_API", "EVALUATION_ARENA_MODELS")
"""What would ask the model for more than answers."""


@pytest.fixture
def web_ui(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Starts Open WebUI before a server, and gives its address."""
    if PROGRAM is None:
        pytest.skip("OPEN_WEBUI names no program to test with")
    processes: list[subprocess.Popen[bytes]] = []

    def start(server: str) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        own |= {f"ENABLE_{name}": "False" for name in QUIET}
        own |= {"OPENAI_API_BASE_URLS": f"{server}/v1", "OPENAI_API_KEYS": "none", "WEBUI_AUTH": "False"}
        own |= {"OFFLINE_MODE": "True", "RAG_EMBEDDING_ENGINE": "openai", "DATA_DIR": str(tmp_path)}
        own |= {"WEBUI_SECRET_KEY": "of a test"}
        with (tmp_path / "log.txt").open("wb") as log:
            command = [str(PROGRAM), "serve", "--host", "127.0.0.1", "--port", str(port)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=own, start_new_session=True))
        until = time.monotonic() + 300
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).raise_for_status()
            except httpx.HTTPError:
                assert time.monotonic() < until, (tmp_path / "log.txt").read_text()[-2_000:]
                time.sleep(0.5)
            else:
                return f"http://127.0.0.1:{port}"

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("events", [False, True])
def test_it_shows_the_answer_and_its_sources(
    serve: Callable[..., Running], web_ui: Callable[[str], str], browser: Any, events: bool
) -> None:
    question = next(one for one in map(str, range(100)) if len(random_rag().generate(one).citations) == 2)
    answer = random_rag().generate(question)
    page = browser.new_context().new_page()
    page.set_default_timeout(120_000)
    page.goto(web_ui(serve(events=events).url))
    page.wait_for_selector("#chat-input")
    page.get_by_role("button", name="Okay, Let's Go!").click()
    page.click("#chat-input")
    page.keyboard.type(question)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="2 Sources").wait_for()
    shown = page.locator("#messages-container").inner_text()
    for segment in answer.segments:
        assert " ".join(segment.text.split()) in " ".join(shown.split())
    for passage in answer.citations:
        assert passage.title in shown
