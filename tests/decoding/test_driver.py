"""The driver and its sessions: no barrier between questions or callers, shared batches, failures that stay apart."""

import asyncio
import gc
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from json_files import table
from pump import at_once
from refusals import refused
from scripted import ScriptedEngine
from written import EOS, LIMITS, PROMPTING, Searches, model, passages, scripted, seen

from selfrag import SelfRAG
from selfrag.common.errors import EngineError, UserError
from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.reflection.requests import (
    External,
    ExternalResult,
    Failed,
    Generate,
    Generated,
    Retrieved,
)
from selfrag.runtime import (
    QuestionAnswered,
    QuestionFailed,
    SegmentFinal,
    drive,
    sessions,
)
from selfrag.runtime.batching import Batcher, SharedRetriever

NEVER, ALWAYS = Decoding(mode="never"), Decoding(mode="always")
MORE = "{retrieve 0 1 0}"
SHORT = {"[No Retrieval]": "Short.</s>"}
LONG = {
    "[No Retrieval]": "1." + MORE,
    "[No Retrieval]1.[No Retrieval]": "2." + MORE,
    "[No Retrieval]1.[No Retrieval]2.[No Retrieval]": "3.</s>",
}
CITING = {"[Retrieval]<d1>": "[Relevant]Found.</s>"}


def asking(*questions, policy=NEVER):
    return [decode(question, PROMPTING, policy) for question in questions]


def ends(events):
    """Text or error of each question."""
    texts = {}
    for event in events:
        if isinstance(event, QuestionAnswered):
            texts[event.index] = event.answer.text
        elif isinstance(event, QuestionFailed):
            texts[event.index] = f"{type(event.error).__name__}: {event.error}"
    return texts


def test_questions_interleave_without_a_barrier_and_segments_come_as_they_are_final():
    """One request a step: the second question ends before the first has got its second segment."""
    engine = scripted({"a": LONG, "b": SHORT, "c": SHORT}, batch=1)
    events = list(drive(asking("a", "b", "c"), engine, None))
    assert [event.index for event in events[:3]] == [0, 1, 1]
    kinds = [type(event) for event in events]
    assert kinds[:3] == [SegmentFinal, SegmentFinal, QuestionAnswered]
    assert (events[-1].index, kinds[-1]) == (0, QuestionAnswered)


def test_generation_goes_on_while_a_search_runs():
    release = threading.Event()

    def slow(queries, k):
        assert release.wait(10)
        return [passages("d1")] * len(queries)

    decoders = [*asking("searching", policy=ALWAYS), *asking("writing")]
    seen = []
    for event in drive(
        decoders, scripted({"searching": CITING, "writing": LONG}), slow
    ):
        if isinstance(event, QuestionAnswered):
            seen.append(event.index)
            release.set()
    assert seen == [1, 0]


def test_at_most_max_live_questions_are_begun():
    begun = []

    def lazily():
        for number in range(6):
            begun.append(number)
            yield decode("q", PROMPTING, NEVER)

    events = drive(lazily(), scripted({"q": SHORT}, batch=1), None, max_live=2)
    next(events)
    assert begun == [0, 1]
    assert len(ends(events)) == 6


def failing(error):
    def retrieve(queries, k):
        raise error

    return retrieve


RETRIEVERS = """
failing(ConnectionError("index is gone")) | ConnectionError: index is gone
failing(UserError("no such index")) | no such index
lambda queries, k: [] | <lambda> returned 0 lists for 1 query
lambda queries, k: "x" | <lambda> returned str
lambda queries, k: ["text"] | <lambda> for query 1 must be a list, not str
lambda queries, k: [["text"]] | passage 1 from retriever <lambda> for query 1
None | no retriever:
"""


@pytest.mark.parametrize("retriever, reason", table(RETRIEVERS))
def test_a_bad_retriever_fails_the_questions_that_search_and_no_others(
    retriever, reason
):
    decoders = [*asking("searching", policy=ALWAYS), *asking("writing")]
    texts = ends(drive(decoders, scripted({"writing": SHORT}), eval(retriever)))
    assert texts[0].startswith("SearchError: search failed: ")
    assert reason in texts[0]
    assert texts[1] == "Short."


def test_one_bad_query_fails_one_question():
    class Careful(Searches):
        def __call__(self, queries, k, /):
            hits = super().__call__(queries, k)
            if "Q1" in queries:
                raise KeyError("q")
            return hits

    names = [f"Q{i}" for i in range(5)]
    searches = Careful(lambda query: passages("d1"))
    engine = scripted(dict.fromkeys(names, CITING))
    texts = ends(drive(asking(*names, policy=ALWAYS), engine, searches))
    assert texts.pop(1) == "SearchError: search failed: KeyError: 'q'"
    assert texts == dict.fromkeys((0, 2, 3, 4), "Found.")
    assert searches.batches == [names, *([name] for name in names)]


def test_leaving_early_aborts_what_is_outstanding():
    engine = scripted({"a": SHORT, "b": LONG, "c": LONG}, batch=1)
    events = drive(asking("a", "b", "c"), engine, None)
    next(events)
    events.close()
    assert engine.aborted == [1, 2]
    assert list(engine.step()) == []


class Dying(ScriptedEngine):
    """An engine that serves so many steps and then dies."""

    left = 0

    def step(self):
        self.left -= 1
        if self.left < 0:
            raise EngineError("out of memory;\nlower max_model_len")
        return super().step()

    def abort(self, tickets):
        raise EngineError("a dead engine cannot abort, which must not hide why it died")


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_engine_that_dies_says_why_in_one_line_and_what_was_answered_before_is_not_lost(
    steps,
):
    engine = Dying(model({"a": SHORT, "b": LONG}), EOS, limits=LIMITS)
    engine.left = steps
    events = []
    with pytest.raises(EngineError, match="out of memory; lower max_model_len"):
        events.extend(drive(asking("a", "b"), engine, None))
    assert ends(events) == ({0: "Short."} if steps else {})


def test_a_programming_error_keeps_its_traceback_and_aborts_the_rest():
    def broken(request):
        raise ZeroDivisionError

    engine = ScriptedEngine(broken, EOS, limits=LIMITS, batch=1)
    with pytest.raises(ZeroDivisionError):
        ends(drive(asking("a", "b"), engine, None))
    assert engine.aborted == [1]


# --- what is asked beside the engine -------------------------------------------------------------------------------


def consulting(*payloads, service, name="judge", timeout=5.0):
    """Asks a service and one token of the engine in one batch, and answers with what came back."""
    asked = [External(service, payload, name, timeout) for payload in payloads]
    results = yield [*asked, Generate(PROMPTING.prompt("Q"), 1)]
    said = [
        r.value if isinstance(r, ExternalResult) else r.reason
        for r in results
        if not isinstance(r, Generated)
    ]
    return Answer("Q", repr(said), (), Usage(), Trace("Q", Decoding(), (), (), None))


def test_all_who_wait_share_a_call_to_a_service_and_one_bad_payload_fails_alone():
    calls = []

    def double(payloads):
        calls.append(list(payloads))
        if 3 in payloads:
            raise ZeroDivisionError("three")
        return [2 * payload for payload in payloads]

    decoders = [
        consulting(*payloads, service=double) for payloads in ((1, 2), (3,), (4,))
    ]
    texts = ends(drive(decoders, scripted({"Q": {"": "x"}}), None))
    assert texts == {0: "[2, 4]", 1: "['ZeroDivisionError: three']", 2: "[8]"}
    assert calls == [[1, 2, 3, 4], [1], [2], [3], [4]]


def test_failures_of_a_service_stay_with_their_requests():
    decoders = [
        consulting(1, service=lambda payloads: [], name="short"),
        consulting(1, 2, service=lambda payloads: [Failed("no"), 2]),
    ]
    texts = ends(drive(decoders, scripted({"Q": {"": "x"}}), None))
    assert texts == {0: "['short answered 0 of 1 request']", 1: "['no', 2]"}


def test_a_service_that_hangs_fails_its_requests_after_their_time_and_nothing_else():
    held = threading.Event()

    def hang(payloads):
        held.wait(30)
        return [0 for _ in payloads]

    decoders = [
        consulting(1, service=hang, timeout=0.2),
        consulting(2, service=lambda payloads: payloads),
    ]
    texts = ends(drive(decoders, scripted({"Q": {"": "x"}}), None))
    held.set()
    assert texts == {0: "['judge gave no answer within 0.2 s']", 1: "[2]"}


# --- many callers on one engine -----------------------------------------------------------------------------------

TREES = {
    f"q{number}": {
        "[No Retrieval]": f"{number}." + MORE,
        f"[No Retrieval]{number}.[No Retrieval]": f"{number + 1}." + MORE,
        f"[No Retrieval]{number}.[No Retrieval]{number + 1}.[No Retrieval]": "end.</s>",
    }
    for number in range(32)
}
TEXTS = {f"q{number}": f"{number}. {number + 1}. end." for number in range(32)}


class Watched(ScriptedEngine):
    """A scripted engine that takes its time, and notices what a shared engine must not do."""

    def __init__(self, seconds=0.002):
        super().__init__(model(TREES), EOS, limits=LIMITS)
        self.seconds, self.inside = seconds, False
        self.sizes = []
        self.threads = set()

    def step(self):
        assert not self.inside
        self.inside = True
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        done = super().step()
        self.sizes.append(len(done))
        self.inside = False
        return done


def ask(rag, number):
    try:
        return rag.generate(f"q{number}", mode="never").text
    except UserError as error:
        return str(error)


def test_thirty_two_threads_get_the_answers_of_single_calls_from_shared_batches():
    engine = Watched()
    rag = SelfRAG(PROMPTING, engine)
    assert at_once(32, lambda number: ask(rag, number)) == [*TEXTS.values()]
    assert len(engine.threads) == 1
    assert max(engine.sizes) > 8, engine.sizes  # one at a time would be 96 steps of one
    assert len(engine.sizes) < 48


def test_a_stream_that_nobody_reads_does_not_hold_up_the_others():
    rag = SelfRAG(PROMPTING, Watched())
    paused = rag.stream("q0", mode="never")
    assert next(paused).text == "0."
    assert at_once(4, lambda number: ask(rag, number)) == [*TEXTS.values()][:4]
    assert [piece.text for piece in paused][-1] == TEXTS["q0"]


def test_what_an_engine_raises_reaches_every_caller_that_waits_for_it_and_no_later_one():
    class Falling(Watched):
        def step(self):
            if any(
                "q13" in seen(request.prompt_ids) for request in self._waiting.values()
            ):
                raise EngineError("fell over")
            return super().step()

    engine = Falling()
    rag = SelfRAG(PROMPTING, engine)
    texts = at_once(32, lambda number: ask(rag, number))
    assert texts[13] == "fell over"
    assert set(texts) <= {*TEXTS.values(), "fell over"}
    assert not engine._waiting
    assert ask(rag, 7) == TEXTS["q7"]


def test_steps_of_a_single_caller_do_not_depend_on_timing():
    """Both questions continue together although one of them takes long to advance."""
    engines = [Watched(seconds=0.0) for _ in range(3)]
    for engine in engines:
        SelfRAG(PROMPTING, engine).generate(["q1", "q2"], mode="never")
    assert [engine.sizes for engine in engines] == [[2, 2, 2]] * 3


def test_the_thread_of_an_engine_ends_with_its_use(monkeypatch):
    monkeypatch.setattr(sessions, "IDLE", 0.01)
    engine = Watched()
    rag = SelfRAG(PROMPTING, engine)
    for _ in range(3):
        assert ask(rag, 3) == TEXTS["q3"]
        time.sleep(0.05)
    assert id(engine) not in {key[1] for key in sessions._WORKERS}


def test_closing_an_engine_waits_for_its_step_and_an_abort_need_not():
    held, entered = threading.Event(), threading.Event()

    def slow(request):
        entered.set()
        assert held.wait(5)
        return Failed("late")

    engine = ScriptedEngine(slow, EOS, limits=LIMITS)
    opened = sessions.open_session(engine, lambda: None)
    with ThreadPoolExecutor(1) as pool:
        ticket = opened.submit(Generate((1,), 1))
        opened.step()
        assert entered.wait(5)
        start = time.perf_counter()
        opened.abort([ticket], wait=False)
        assert time.perf_counter() - start < 1
        closing = pool.submit(sessions.close, engine)
        time.sleep(0.1)
        assert not closing.done()
        held.set()
        closing.result(5)
    opened.close()


def test_an_abandoned_stream_is_collected_without_waiting_for_itself(monkeypatch):
    # A busy machine may need more than the 10 seconds.
    monkeypatch.setattr(sessions, "PATIENCE", 60.0)
    rag = SelfRAG(PROMPTING, Watched())
    started = time.perf_counter()
    for number in range(4):
        pieces = rag.stream(f"q{number}", mode="never")
        next(pieces)
        cycle = [pieces]
        cycle.append(cycle)
        del pieces, cycle
    gc.collect()
    assert ask(rag, 5) == TEXTS["q5"]
    assert time.perf_counter() - started < sessions.PATIENCE


def test_a_fork_is_told_to_load_its_own_engine():
    rag = SelfRAG(PROMPTING, Watched())
    assert ask(rag, 1) == TEXTS["q1"]
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=lambda: told.put(ask(rag, 1)))
    child.start()
    assert "cannot be used in its fork" in told.get(timeout=20)
    child.join(20)
    assert ask(rag, 1) == TEXTS["q1"]


def test_searches_of_many_threads_gather_and_one_that_fails_is_the_error_of_its_own_thread():
    calls = []

    def slow(queries, k):
        calls.append(len(queries))
        time.sleep(0.05)
        if "bad" in queries:
            raise ConnectionError(f"gone, {len(queries)} asked")
        return [passages(*(f"{query}{rank}" for rank in range(k))) for query in queries]

    shared = SharedRetriever(slow)

    def search(number):
        try:
            (hits,) = shared(["bad" if number == 5 else f"d{number}x"], 1 + number % 3)
        except UserError as error:
            return str(error)
        return [passage.id for passage in hits]

    expected = [
        [f"d{number}x{rank}" for rank in range(1 + number % 3)] for number in range(16)
    ]
    expected[5] = "ConnectionError: gone, 1 asked"
    assert at_once(16, search) == expected
    calls.clear()
    assert at_once(5, search) == expected[:5]
    assert sum(calls) == 5
    assert len(calls) < 5


def test_a_function_that_hangs_keeps_one_thread():
    going_on = threading.Event()

    def hang(requests):
        going_on.wait(20)
        return [Retrieved(()) for _ in requests]

    batcher = Batcher(hang)
    before = threading.active_count()
    futures = [batcher.submit([number]) for number in range(50)]
    assert threading.active_count() == before + 1
    going_on.set()
    assert [len(future.result(20)) for future in futures] == [1] * 50


def test_an_event_loop_asks_many_at_once_and_stays_free():
    ticked = threading.Event()

    class Waiting(Watched):
        """Each step waits for the event loop, so a loop that a call holds up gets no answer."""

        free = True

        def step(self):
            ticked.clear()
            self.free = self.free and ticked.wait(20)
            assert self.free, "the event loop is held up"
            return super().step()

    engine = Waiting()
    rag = SelfRAG(PROMPTING, engine, Searches(lambda query: passages("d1")))

    async def tick():
        while True:
            await asyncio.sleep(0.001)
            ticked.set()

    async def everything():
        ticking = asyncio.create_task(tick())
        answers = await asyncio.gather(
            *(rag.agenerate(question, mode="never") for question in TREES)
        )
        ticking.cancel()
        return answers

    assert [answer.text for answer in asyncio.run(everything())] == [*TEXTS.values()]
    assert max(engine.sizes) > 8


def test_an_event_loop_streams():
    rag = SelfRAG(PROMPTING, Watched())

    async def read(question):
        return [piece async for piece in rag.astream(question, mode="never")]

    pieces = asyncio.run(read("q4"))
    assert [piece.text for piece in pieces] == ["4.", "5.", "end.", TEXTS["q4"]]
    with refused("unknown setting"):
        rag.astream("q4", treshold=1)
    with refused("one question"):
        rag.stream(["q4", "q5"])
