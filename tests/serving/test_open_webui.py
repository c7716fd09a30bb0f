"""Open WebUI itself, unmodified, before our server: it needs an environment of its own (7 GiB), so CI does without.

OPEN_WEBUI=/path/to/bin/open-webui python -m pytest -m slow tests/serving/test_open_webui.py
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from served import random_rag, soon

sys.path.append(str(Path(__file__).parents[1] / "render"))

from browsing import browser as browser

pytestmark = pytest.mark.slow
PROGRAM = os.environ.get("OPEN_WEBUI")
SETTINGS = """OPENAI_API_KEYS=none WEBUI_AUTH=False OFFLINE_MODE=True WEBUI_SECRET_KEY=test RAG_EMBEDDING_ENGINE=openai
ENABLE_OLLAMA_API=False ENABLE_TITLE_GENERATION=False ENABLE_TAGS_GENERATION=False
ENABLE_FOLLOW_UP_GENERATION=False ENABLE_EVALUATION_ARENA_MODELS=False"""
"""The last would ask the model for more than answers."""


def healthy(url):
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=2).is_success
    return False


@contextmanager
def web_ui(server, folder):
    """Open WebUI before a server, at this address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    own = dict(os.environ)
    own |= dict(setting.split("=") for setting in SETTINGS.split())
    own |= {"OPENAI_API_BASE_URLS": f"{server}/v1", "DATA_DIR": str(folder)}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        own.pop(name, None)
    command = [str(PROGRAM), "serve", "--host", "127.0.0.1", "--port", port]
    with subprocess.Popen(command, env=own, start_new_session=True) as process:
        try:
            soon(lambda: healthy(f"http://127.0.0.1:{port}"), 300)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.skipif(PROGRAM is None, reason="OPEN_WEBUI names no program to test with")
@pytest.mark.parametrize("events", [False, True])
def test_it_shows_the_answer_and_its_sources(serve, browser, tmp_path, events):
    answers = (random_rag().generate(str(number)) for number in range(100))
    answer = next(answer for answer in answers if len(answer.citations) == 2)
    page = browser.new_context().new_page()
    page.set_default_timeout(120_000)
    with web_ui(serve(events=events).url, tmp_path) as address:
        page.goto(address)
        page.wait_for_selector("#chat-input")
        page.get_by_role("button", name="Okay, Let's Go!").click()
        page.click("#chat-input")
        page.keyboard.type(answer.question)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="2 Sources").wait_for()
        shown = " ".join(page.locator("#messages-container").inner_text().split())
    texts = [segment.text for segment in answer.segments]
    texts += [passage.title for passage in answer.citations]
    for text in texts:
        assert " ".join(text.split()) in shown
