"""What is asked beside the engine: one batch for all who wait, failures that stay with their requests, cancelling."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from written import PROMPTING, scripted

from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.driver import Answered, Broken, consult, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Consult, Consulted, Failed, Generate
from selfrag.decoding.trace import Trace
from selfrag.decoding.tree import Decoder
from selfrag.errors import UserError

TREE = {"Q": {"": "x"}}


def asking(*payloads: Any, service: str = "judge") -> Decoder:
    """Asks a service and one token of the engine in one batch, and answers with what came back."""
    results = yield [*(Consult(service, payload) for payload in payloads), Generate(PROMPTING.prompt("Q"), 1)]
    said = [r.value if isinstance(r, Consulted) else r.reason for r in results if isinstance(r, Consulted | Failed)]
    return Answer("Q", repr(said), (), Usage(), Trace("Q", Decoding(), (), (), None))


def texts(decoders: Sequence[Decoder], **options: Any) -> list[str]:
    events = [e for e in drive(decoders, scripted(TREE), None, **options) if isinstance(e, Answered)]
    return [event.answer.text for event in sorted(events, key=lambda event: event.index)]


def test_all_who_wait_share_a_call() -> None:
    calls: list[list[int]] = []

    def double(payloads: Sequence[int]) -> list[int]:
        calls.append(list(payloads))
        return [2 * payload for payload in payloads]

    found = texts([asking(1, 2), asking(3), asking(4)], services={"judge": double})
    assert found == ["[2, 4]", "[6]", "[8]"]
    assert calls == [[1, 2, 3, 4]]


def test_failures_stay_with_their_requests() -> None:
    def fails(payloads: Sequence[int]) -> list[int]:
        raise ValueError("boom")

    def refuses(payloads: Sequence[int]) -> list[int]:
        raise UserError("no adapter")

    services = {"fails": fails, "refuses": refuses, "short": lambda payloads: [], "some": lambda p: [Failed("no"), 2]}
    decoders = [asking(1, 2, service=name) for name in ("fails", "refuses", "short", "some", "missing")]
    assert texts(decoders, services=services) == [
        "['ValueError: boom', 'ValueError: boom']",
        "['no adapter', 'no adapter']",
        "['short answered 0 of 1 requests', 'short answered 0 of 1 requests']",
        "['no', 2]",
        "[\"no service 'missing'\", \"no service 'missing'\"]",
    ]
    assert consult(lambda payloads: [7], [Consult("x", 1)]) == [Consulted(7)]


def test_a_cancelled_question_waits_for_no_service() -> None:
    release, cancelled = threading.Event(), set[int]()

    def slow(payloads: Sequence[int]) -> list[int]:
        cancelled.add(0)
        release.wait(10)
        return list(payloads)

    events = drive([asking(1)], scripted(TREE), None, services={"judge": slow}, cancelled=cancelled)
    (event,) = list(events)
    release.set()
    assert isinstance(event, Broken)
    assert str(event.error) == "cancelled"
