"""Requests made from the OpenAPI document, right and wrong: none makes the server fail or hang."""

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from served import random_rag

from selfrag.serving.app import create_app
from selfrag.serving.service import Service

schemathesis = pytest.importorskip(
    "schemathesis", reason="schemathesis is not installed"
)

CASES = int(os.environ.get("SELFRAG_OPENAPI_CASES", "20"))
"""Of each route, right ones and as many wrong ones."""
SCHEMA = schemathesis.openapi.from_dict(create_app(Service(random_rag())).openapi())
OPERATIONS = {
    f"{found.ok().method} {found.ok().path}": found.ok()
    for found in SCHEMA.get_all_operations()
}
ANSWERING = ("v1/chat/completions", "v1/responses", "v1/rescore", "v1/judge")
POST = [f"post /{path}" for path in (*ANSWERING, "retrieve", "search")]
GET = [
    f"get /{path}"
    for path in (
        "v1/models",
        "v1/models/{name}",
        "v1/answers/{name}",
        "health",
        "metrics",
    )
]


def test_every_route_is_documented():
    assert set(OPERATIONS) == {*POST, *GET}


@pytest.mark.parametrize(
    "operation, mode",
    [
        *((name, "POSITIVE") for name in (*POST, *GET)),
        *((name, "NEGATIVE") for name in POST),
    ],
)
def test_no_request_makes_the_server_fail(serve, operation, mode):
    running = serve()
    cases = OPERATIONS[operation].as_strategy(
        generation_mode=schemathesis.GenerationMode[mode]
    )

    @settings(
        max_examples=CASES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(cases)
    def sent(case):
        started = time.monotonic()
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
