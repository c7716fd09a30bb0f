"""SIGKILL of a real `vllm serve` behind a real `selfrag` server: told in one line, and recovered without a restart."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from served_vllm import ServedVLLM

from retrieval.passage import Passage
from selfrag.api import SelfRAG

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "serving"), str(TESTS / "decoding")]

from served import Running, serve, soon  # noqa: E402, F401 - a fixture

pytestmark = [pytest.mark.engine, pytest.mark.slow]  # two starts of a server
CORPUS = [Passage("a", "Alpha is the first letter.", "Alpha"), Passage("b", "Beta is the second.", "Beta")]


def test_a_killed_engine_is_told_and_found_again(
    vllm_server: ServedVLLM,
    tiny_llama: Path,
    serve: Callable[..., Running],  # noqa: F811
) -> None:
    def load() -> SelfRAG:
        return SelfRAG.from_pretrained(
            tiny_llama, engine="http", url=vllm_server.url, retriever=lambda queries, k: [CORPUS[:k] for _ in queries]
        )

    running = serve(load(), reload=load)
    settings = {"mode": "always", "max_segments": 2, "segment_tokens": 60}
    before = running.chat("What is alpha?", selfrag=settings)
    assert before.status_code == 200, before.text
    lines: list[str] = []
    begun = threading.Event()

    def stream() -> None:
        long = {"mode": "always", "max_segments": 64, "segment_tokens": 60, "answer_tokens": 900}
        body = {"model": "selfrag", "messages": [{"role": "user", "content": "Go on"}], "stream": True, "selfrag": long}
        with running.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            for line in reply.iter_lines():
                lines.append(line)
                begun.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert begun.wait(30)
    vllm_server.kill()
    thread.join(60)
    assert "data: [DONE]" in lines
    last = json.loads([line for line in lines if line.startswith("data: {")][-1][6:])
    assert last["error"]["code"] == "engine_down"
    refused = running.chat("What is alpha?", selfrag=settings)
    assert refused.status_code == 503
    assert "\n" not in refused.json()["error"]["message"]
    assert running.client.get("/health").json() == {"status": "recovering"}
    vllm_server.ensure()
    soon(lambda: running.client.get("/health").status_code == 200, 60)
    again = running.chat("What is alpha?", selfrag=settings)
    assert again.json()["choices"] == before.json()["choices"]
