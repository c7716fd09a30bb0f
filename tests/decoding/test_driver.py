"""The driver: no barrier between questions, batched searches, failures that stay with their question."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from written import EOS, LIMITS, PROMPTING, Tree, passages, scripted

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, Committed, Event, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Consult, Consulted, Failed, Generate, Generated
from selfrag.decoding.trace import Trace
from selfrag.decoding.tree import Decoder
from selfrag.engines.scripted import ScriptedEngine
from selfrag.errors import EngineError, UserError

NEVER, ALWAYS = Decoding(mode="never"), Decoding(mode="always")
MORE = "{retrieve 0 1 0}"
SHORT: Tree = {"[No Retrieval]": "Short.</s>"}
LONG: Tree = {
    "[No Retrieval]": "1." + MORE,
    "[No Retrieval]1.[No Retrieval]": "2." + MORE,
    "[No Retrieval]1.[No Retrieval]2.[No Retrieval]": "3.</s>",
}
CITING: Tree = {"[Retrieval]<d1>": "[Relevant]Found.</s>"}


def asking(*questions: str, policy: Decoding = NEVER) -> list[Decoder]:
    return [decode(question, PROMPTING, policy) for question in questions]


def ends(events: Iterator[Event] | Sequence[Event]) -> dict[int, str]:
    """Text or error of each question, in the order in which they ended."""
    found = {}
    for event in events:
        if isinstance(event, Answered):
            found[event.index] = event.answer.text
        elif isinstance(event, Broken):
            found[event.index] = f"{type(event.error).__name__}: {event.error}"
    return found


def test_questions_interleave_without_a_barrier() -> None:
    """One request a step: the second question ends before the first has got its second segment."""
    engine = scripted({"a": LONG, "b": SHORT, "c": SHORT}, batch=1)
    order = [(e.index, type(e).__name__) for e in drive(asking("a", "b", "c"), engine, None)]
    assert order[:3] == [(0, "Committed"), (1, "Committed"), (1, "Answered")]
    assert order[-1] == (0, "Answered")


def test_generation_goes_on_while_a_search_runs() -> None:
    release = threading.Event()

    def slow(queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        assert release.wait(10)
        return [passages("d1")] * len(queries)

    decoders = [*asking("searching", policy=ALWAYS), *asking("writing")]
    events = drive(decoders, scripted({"searching": CITING, "writing": LONG}), slow)
    seen = []
    for event in events:
        if isinstance(event, Answered):
            seen.append(event.index)
            release.set()
    assert seen == [1, 0]


def test_at_most_max_live_questions_are_begun() -> None:
    begun: list[int] = []

    def lazily() -> Iterator[Decoder]:
        for number in range(6):
            begun.append(number)
            yield decode("q", PROMPTING, NEVER)

    events = drive(lazily(), scripted({"q": SHORT}, batch=1), None, max_live=2)
    next(events)
    assert begun == [0, 1]
    assert len(ends(events)) == 6


def failing(error: Exception) -> Callable[[Sequence[str], int], Any]:
    def retrieve(queries: Sequence[str], k: int) -> Any:
        raise error

    return retrieve


@pytest.mark.parametrize(
    ("retriever", "reason"),
    [
        (failing(ConnectionError("index is gone")), "ConnectionError: index is gone"),
        (failing(UserError("no such index")), "no such index"),
        (lambda queries, k: None, "the retriever returned NoneType, not a list for its queries"),
        (lambda queries, k: [], "the retriever answered 0 of 1 queries"),
        (lambda queries, k: "x", "the retriever returned str, not a list for its queries"),
        (lambda queries, k: [None], "the retriever returned NoneType for a query, not a list of passages"),
        (lambda queries, k: [["text"]], "the retriever returned str where a Passage was expected"),
        (lambda queries, k: ["text"], "the retriever returned str for a query, not a list of passages"),
        (None, "no retriever: pass retriever=.. or evidence=.., on the command line --index DIR"),
    ],
)
def test_a_bad_retriever_fails_the_questions_that_search_and_no_others(retriever: Any, reason: str) -> None:
    decoders = [*asking("searching", policy=ALWAYS), *asking("writing")]
    found = ends(drive(decoders, scripted({"writing": SHORT}), retriever))
    assert found == {0: f"SearchError: search failed: {reason}", 1: "Short."}


def test_a_cancelled_question_is_aborted_and_the_others_finish() -> None:
    cancelled: set[int] = set()
    engine = scripted({"a": LONG, "b": LONG}, batch=1)
    events: list[Event] = []
    for event in drive(asking("a", "b"), engine, None, cancelled=cancelled):
        events.append(event)
        if isinstance(event, Committed) and event.index == 0:
            cancelled.add(0)
    assert ends(events) == {0: "DecodingError: cancelled", 1: "1. 2. 3."}
    assert engine.aborted == []
    assert len(engine.requests) == 4  # one of the cancelled question, whose second was not sent, and three of the other


@pytest.mark.parametrize("service", [False, True])
def test_a_question_can_be_cancelled_while_only_its_search_or_a_service_runs(service: bool) -> None:
    release = threading.Event()
    cancelled: set[int] = set()

    def slow(asked: Sequence[Any], k: int = 1) -> list[Any]:
        cancelled.add(0)
        assert release.wait(10)
        return [passages("d1")] * len(asked)

    decoders = [consulting(1)] if service else asking("searching", policy=ALWAYS)
    engine = scripted({"Q": {"": "x"}})
    try:
        events = list(drive(decoders, engine, slow, services={"judge": slow}, cancelled=cancelled))
        assert not release.is_set()
    finally:
        release.set()
    assert ends(events) == {0: "DecodingError: cancelled"}


def test_leaving_early_aborts_what_is_outstanding() -> None:
    engine = scripted({"a": SHORT, "b": LONG, "c": LONG}, batch=1)
    events = drive(asking("a", "b", "c"), engine, None)
    next(events)
    events.close()
    assert engine.aborted == [1, 2]
    assert list(engine.step()) == []


@dataclass(slots=True)
class Dying:
    """An engine that serves so many steps and then dies."""

    inner: ScriptedEngine
    steps: int
    aborted: list[int] = field(default_factory=list)

    def submit(self, request: Generate) -> int:
        if self.steps < 0:
            raise EngineError("the engine is dead")
        return self.inner.submit(request)

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        self.steps -= 1
        if self.steps < 0:
            raise EngineError("the engine died: out of memory;\nlower max_model_len")
        return self.inner.step()

    def abort(self, tickets: Any) -> None:
        if self.steps < 0:
            raise EngineError("the engine is dead")
        self.aborted += tickets


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_engine_that_dies_says_why_in_one_line(steps: int) -> None:
    engine = Dying(scripted({"a": LONG, "b": LONG}), steps)
    with pytest.raises(EngineError, match=r"^the engine died: out of memory; lower max_model_len$"):
        ends(drive(asking("a", "b"), engine, None))


def test_answers_given_before_the_engine_died_are_not_lost() -> None:
    events = drive(asking("a", "b"), Dying(scripted({"a": SHORT, "b": LONG}), 2), None)
    assert ends([next(events), next(events)]) == {0: "Short."}
    with pytest.raises(EngineError):
        list(events)


def test_a_programming_error_keeps_its_traceback_and_aborts_the_rest() -> None:
    def broken(request: Generate) -> Any:
        raise ZeroDivisionError

    engine = ScriptedEngine(broken, EOS, limits=LIMITS, batch=1)
    with pytest.raises(ZeroDivisionError):
        ends(drive(asking("a", "b"), engine, None))
    assert engine.aborted == [1]


# --- what is asked beside the engine -------------------------------------------------------------------------------


def consulting(*payloads: Any, service: str = "judge") -> Decoder:
    """Asks a service and one token of the engine in one batch, and answers with what came back."""
    results = yield [*(Consult(service, payload) for payload in payloads), Generate(PROMPTING.prompt("Q"), 1)]
    said = [r.value if isinstance(r, Consulted) else r.reason for r in results if isinstance(r, Consulted | Failed)]
    return Answer("Q", repr(said), (), Usage(), Trace("Q", Decoding(), (), (), None))


def test_all_who_wait_share_a_call_to_a_service() -> None:
    calls: list[list[int]] = []

    def double(payloads: Sequence[int]) -> list[int]:
        calls.append(list(payloads))
        return [2 * payload for payload in payloads]

    decoders = [consulting(1, 2), consulting(3), consulting(4)]
    found = ends(drive(decoders, scripted({"Q": {"": "x"}}), None, services={"judge": double}))
    assert found == {0: "[2, 4]", 1: "[6]", 2: "[8]"}
    assert calls == [[1, 2, 3, 4]]


def test_failures_of_a_service_stay_with_their_requests() -> None:
    def fails(payloads: Sequence[int]) -> list[int]:
        raise ValueError("boom")

    def refuses(payloads: Sequence[int]) -> list[int]:
        raise UserError("no adapter")

    services = {"fails": fails, "refuses": refuses, "short": lambda payloads: [], "some": lambda p: [Failed("no"), 2]}
    decoders = [consulting(1, 2, service=name) for name in ("fails", "refuses", "short", "some", "missing")]
    found = ends(drive(decoders, scripted({"Q": {"": "x"}}), None, services=services))
    assert [found[i] for i in range(5)] == [
        "['ValueError: boom', 'ValueError: boom']",
        "['no adapter', 'no adapter']",
        "['short answered 0 of 1 requests', 'short answered 0 of 1 requests']",
        "['no', 2]",
        "[\"no service 'missing'\", \"no service 'missing'\"]",
    ]
