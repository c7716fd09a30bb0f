"""A real `vllm serve` that dies in the middle; last by name of the modules that use it, so none starts it again."""

from __future__ import annotations

import threading

import pytest
from pump import prompt, serve

from selfrag.decoding.requests import Generate
from selfrag.engines.http import HTTPConfig, HTTPEngine
from selfrag.errors import EngineError

pytestmark = pytest.mark.engine


def test_server_killed_in_the_middle_is_one_clear_line(vllm_server, tiny_llama):
    engine = HTTPEngine.load(HTTPConfig(vllm_server.url, model_dir=str(tiny_llama), retries=1, backoff=0.1))
    for i in range(7):
        engine.submit(Generate(prompt(10, i), 1000))
    threading.Timer(0.1, vllm_server.kill).start()

    def ask() -> None:
        for _ in range(1000):  # one of them is under way when the server dies
            serve(engine, [Generate(prompt(10, 9), 1000)])

    with pytest.raises(EngineError, match=f"no server at {vllm_server.url} after 2 attempts") as caught:
        ask()
    assert "\n" not in str(caught.value)
    engine.close()
