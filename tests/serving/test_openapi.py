"""Requests made from the OpenAPI document, right and wrong: none makes the server fail or hang."""

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from served import random_rag

from selfrag.serving.app import create_app
from selfrag.serving.service import Service

CASES = int(os.environ.get("SELFRAG_OPENAPI_CASES", "20"))
"""Of each route, right ones and as many wrong ones."""
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


@pytest.fixture(scope="module")
def schemathesis():
    """The package, which takes a second to import."""
    return pytest.importorskip("schemathesis", reason="schemathesis is not installed")


@pytest.fixture(scope="module")
def operations(schemathesis):
    """Every documented operation by its name."""
    document = create_app(Service(random_rag())).openapi()
    described = schemathesis.openapi.from_dict(document).get_all_operations()
    return {f"{one.ok().method} {one.ok().path}": one.ok() for one in described}


def test_every_route_is_documented(operations):
    assert set(operations) == {*POST, *GET}


@pytest.mark.parametrize(
    "operation, mode",
    [
        *((name, "POSITIVE") for name in (*POST, *GET)),
        *((name, "NEGATIVE") for name in POST),
    ],
)
def test_no_request_makes_the_server_fail(
    serve, schemathesis, operations, operation, mode
):
    running = serve()
    cases = operations[operation].as_strategy(
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
