"""Many callers on one engine: shared batches, answers of single calls, failures and cancellations that stay apart."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pump import at_once
from written import EOS, LIMITS, PROMPTING, Searches, Tree, model, passages

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.decoding import sessions
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.driver import SharedRetriever
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.scripted import ScriptedEngine
from selfrag.errors import EngineError, UserError

MORE = "{retrieve 0 1 0}"
TREES: dict[str, Tree] = {
    f"q{number}": {
        "[No Retrieval]": f"{number}." + MORE,
        "[No Retrieval]" + f"{number}." + "[No Retrieval]": f"{number + 1}." + MORE,
        "[No Retrieval]" + f"{number}.[No Retrieval]{number + 1}." + "[No Retrieval]": "end.</s>",
    }
    for number in range(32)
}
TEXTS = {f"q{number}": f"{number}. {number + 1}. end." for number in range(32)}


class Watched(ScriptedEngine):
    """A scripted engine that takes its time, and notices what a shared engine must not do."""

    sizes: list[int]
    threads: set[int]
    inside: bool

    def __init__(self, trees: dict[str, Tree], seconds: float = 0.002) -> None:
        super().__init__(model(trees), EOS, limits=LIMITS)
        self.seconds, self.sizes, self.threads, self.inside = seconds, [], set(), False

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        assert not self.inside
        self.inside = True
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        done = super().step()
        self.sizes.append(len(done))
        self.inside = False
        return done


def test_thirty_two_threads_get_the_answers_of_single_calls_from_shared_batches() -> None:
    engine = Watched(TREES)
    rag = SelfRAG(PROMPTING, engine)
    answers = at_once(32, lambda number: rag.generate(f"q{number}", mode="never"))
    assert {answer.question: answer.text for answer in answers} == TEXTS
    assert len(engine.threads) == 1
    assert max(engine.sizes) > 8, engine.sizes  # one at a time would be 96 steps of one
    assert len(engine.sizes) < 48


def test_a_stream_that_nobody_reads_does_not_hold_up_the_others() -> None:
    rag = SelfRAG(PROMPTING, Watched(TREES))
    paused = rag.stream("q0", mode="never")
    assert next(paused).text == "0."
    assert at_once(4, lambda number: rag.generate(f"q{number + 1}", mode="never").text) == [
        TEXTS[f"q{number + 1}"] for number in range(4)
    ]
    assert [piece.text for piece in paused][-1] == TEXTS["q0"]


def test_what_an_engine_raises_reaches_every_caller_that_waits_for_it_and_no_later_one() -> None:
    class Falling(Watched):
        def step(self) -> Sequence[tuple[int, Generated | Failed]]:
            if any("q13" in _text(request) for request in self._waiting.values()):
                raise EngineError("fell over")
            return super().step()

    engine = Falling(TREES)
    rag = SelfRAG(PROMPTING, engine)

    def ask(number: int) -> str:
        try:
            return rag.generate(f"q{number}", mode="never").text
        except EngineError as error:
            return str(error)

    texts = at_once(32, ask)
    assert texts[13] == "fell over"
    assert {text for number, text in enumerate(texts) if text != TEXTS[f"q{number}"]} == {"fell over"}
    assert not engine._waiting
    assert ask(7) == TEXTS["q7"]


def _text(request: Generate) -> str:
    return "".join(chr(i - 100) for i in request.prompt_ids if i >= 100)


def test_steps_of_a_single_caller_do_not_depend_on_timing() -> None:
    """Both questions continue together although one of them takes long to advance."""
    sizes = []
    for _ in range(3):
        engine = Watched(TREES, seconds=0.0)
        SelfRAG(PROMPTING, engine).generate(["q1", "q2"], mode="never")
        sizes.append(engine.sizes)
    assert sizes == [[2, 2, 2]] * 3


def test_the_thread_of_an_engine_ends_with_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "IDLE", 0.01)
    engine = Watched(TREES)
    rag = SelfRAG(PROMPTING, engine)
    for _ in range(5):
        assert rag.generate("q3", mode="never").text == TEXTS["q3"]
        time.sleep(0.05)
    assert id(engine) not in {key[1] for key in sessions._WORKERS}


def test_closing_an_engine_waits_for_its_step() -> None:
    held, entered = threading.Event(), threading.Event()

    def slow(request: Generate) -> Any:
        entered.set()
        assert held.wait(5)
        return Failed("late")

    engine = ScriptedEngine(slow, EOS, limits=LIMITS)
    opened = sessions.open_session(engine, lambda: None)
    with ThreadPoolExecutor(1) as pool:
        opened.submit(Generate((1,), 1))
        opened.step()
        assert entered.wait(5)
        closing = pool.submit(sessions.close, engine)
        time.sleep(0.1)
        assert not closing.done()
        held.set()
        closing.result(5)
    opened.close()


def test_aborting_without_waiting_does_not_wait_for_a_step() -> None:
    held, entered = threading.Event(), threading.Event()

    def slow(request: Generate) -> Any:
        entered.set()
        held.wait(5)
        return Failed("late")

    opened = sessions.open_session(ScriptedEngine(slow, EOS, limits=LIMITS), lambda: None)
    ticket = opened.submit(Generate((1,), 1))
    opened.step()
    assert entered.wait(5)
    start = time.perf_counter()
    opened.abort([ticket], wait=False)
    assert time.perf_counter() - start < 1
    held.set()
    opened.close()


def test_an_abandoned_stream_is_collected_without_waiting_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PATIENCE", 60.0)  # a busy machine may need more than the 10 seconds
    rag = SelfRAG(PROMPTING, Watched(TREES))
    started = time.perf_counter()
    for number in range(4):
        pieces: Any = rag.stream(f"q{number}", mode="never")
        next(pieces)
        cycle: list[Any] = [pieces]
        cycle.append(cycle)
        del pieces, cycle
    gc.collect()
    assert rag.generate("q5", mode="never").text == TEXTS["q5"]
    assert time.perf_counter() - started < sessions.PATIENCE


def _ask_in_child(rag: SelfRAG, told: Any) -> None:
    try:
        told.put(rag.generate("q1", mode="never").text)
    except UserError as error:
        told.put(str(error))


def test_a_fork_is_told_to_load_its_own_engine() -> None:
    rag = SelfRAG(PROMPTING, Watched(TREES))
    assert rag.generate("q1", mode="never").text == TEXTS["q1"]
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=_ask_in_child, args=(rag, told))
    child.start()
    assert "cannot be used in its fork" in told.get(timeout=20)
    child.join(20)
    assert rag.generate("q1", mode="never").text == TEXTS["q1"]


def test_searches_of_many_threads_gather_while_one_runs() -> None:
    calls: list[int] = []

    def slow(queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        calls.append(len(queries))
        time.sleep(0.05)
        return [passages(*(f"{query}{rank}" for rank in range(k))) for query in queries]

    shared = SharedRetriever(slow)
    found = at_once(16, lambda number: shared([f"d{number}x"], 1 + number % 3))
    for number, (one,) in enumerate(found):
        assert [passage.id for passage in one] == [f"d{number}x{rank}" for rank in range(1 + number % 3)]
    assert sum(calls) == 16
    assert len(calls) < 8


def test_a_search_that_fails_is_the_error_of_its_own_thread() -> None:
    def picky(queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        time.sleep(0.01)
        if "bad" in queries:
            raise ConnectionError(f"gone, {len(queries)} asked")
        return [passages(query) for query in queries]

    shared = SharedRetriever(picky)

    def ask(number: int) -> str:
        try:
            return shared(["bad" if number == 5 else f"d{number}"], 1)[0][0].id
        except ConnectionError as error:
            return str(error)

    assert at_once(12, ask) == ["gone, 1 asked" if number == 5 else f"d{number}" for number in range(12)]


def test_an_event_loop_asks_many_at_once_and_stays_free() -> None:
    ticked = threading.Event()

    class Waiting(Watched):
        """Each step waits for the event loop, so a loop that a call holds up gets no answer."""

        free = True

        def step(self) -> Sequence[tuple[int, Generated | Failed]]:
            ticked.clear()
            self.free = self.free and ticked.wait(20)
            assert self.free, "the event loop is held up"
            return super().step()

    engine = Waiting(TREES)
    rag = SelfRAG(PROMPTING, engine, Searches(lambda query: passages("d1")))

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)
            ticked.set()

    async def everything() -> list[Answer]:
        ticking = asyncio.create_task(tick())
        answers = await asyncio.gather(*(rag.agenerate(question, mode="never") for question in TREES))
        ticking.cancel()
        return answers

    answers = asyncio.run(everything())
    assert {answer.question: answer.text for answer in answers} == TEXTS
    assert max(engine.sizes) > 8


def test_an_event_loop_streams() -> None:
    rag = SelfRAG(PROMPTING, Watched(TREES))

    async def read(question: str) -> list[Segment | Answer]:
        return [piece async for piece in rag.astream(question, mode="never")]

    assert [piece.text for piece in asyncio.run(read("q4"))] == ["4.", "5.", "end.", TEXTS["q4"]]
    with pytest.raises(UserError, match="unknown setting"):
        rag.astream("q4", treshold=1)
    with pytest.raises(UserError, match="one question"):
        rag.stream(["q4", "q5"])  # type: ignore[arg-type]
