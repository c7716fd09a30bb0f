"""Requests made from the OpenAPI document, right and wrong: none makes the server fail or hang."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import Running, random_rag

from selfrag.serving.app import create_app
from selfrag.serving.service import Service

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

CASES = int(os.environ.get("SELFRAG_OPENAPI_CASES", "20"))
"""Of each route, right ones and as many wrong ones."""
SCHEMA = schemathesis.openapi.from_dict(create_app(Service(random_rag())).openapi())
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


WRONG = [name for name in OPERATIONS if name.startswith("post")]
GIVEN = [*((name, "POSITIVE") for name in OPERATIONS), *((name, "NEGATIVE") for name in WRONG)]


@pytest.mark.parametrize(("operation", "mode"), GIVEN)
def test_no_request_makes_the_server_fail(serve: Callable[..., Running], operation: str, mode: str) -> None:
    running = serve()
    cases = OPERATIONS[operation].as_strategy(generation_mode=schemathesis.GenerationMode[mode])

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.data())
    def sent(data: Any) -> None:
        started = time.monotonic()
        case = data.draw(cases)
        if isinstance(case.body, dict) and "model" in case.body and mode == "POSITIVE":
            case.body["model"] = "selfrag"  # another name ends every case early
        reply = case.call(base_url=running.url)
        assert reply.status_code < 500, reply.text
        assert time.monotonic() - started < 10
        if reply.status_code >= 400:
            message = reply.json()["error"]["message"]
            assert message
            assert "\n" not in message

    sent()
