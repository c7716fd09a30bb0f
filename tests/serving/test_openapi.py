"""Requests made from the OpenAPI document, right and wrong: none makes the server fail or hang."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import random_rag

from selfrag.serving.app import create_app
from selfrag.serving.service import Service

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

CASES = int(os.environ.get("SELFRAG_OPENAPI_CASES", "40"))
"""Of each route, half of them wrong on purpose."""
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", create_app(Service(random_rag())))
OPERATIONS = {f"{found.ok().method} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}


def test_every_route_is_documented() -> None:
    assert set(OPERATIONS) == {
        "post /v1/chat/completions",
        "post /v1/responses",
        "post /v1/rescore",
        "post /retrieve",
        "post /search",
        "get /v1/models",
        "get /v1/answers/{name}",
        "get /health",
        "get /metrics",
    }


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_request_makes_the_server_fail(operation: str, wrong: bool) -> None:
    modes = schemathesis.GenerationMode
    try:
        cases = OPERATIONS[operation].as_strategy(
            generation_mode=modes.NEGATIVE if wrong else modes.POSITIVE,
        )
    except Exception as error:
        pytest.skip(f"nothing can be wrong there: {error}")

    @settings(max_examples=CASES // 2, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.data())
    def sent(data: Any) -> None:
        started = time.monotonic()
        reply = data.draw(cases).call()
        assert reply.status_code < 500, reply.text
        assert time.monotonic() - started < 10
        if reply.status_code >= 400:
            message = reply.json()["error"]["message"]
            assert message
            assert "\n" not in message

    sent()
