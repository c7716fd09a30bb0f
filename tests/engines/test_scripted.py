"""The scripted engine obeys the same protocol and the same refusals as the real ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.base import Engine, Limits
from selfrag.engines.scripted import FLOOR, Reply, ScriptedEngine, unlike
from selfrag.errors import EngineError

EOS = 0


def engine(*ids: int, rows: dict[int, dict[int, float]] | None = None, **options: object) -> ScriptedEngine:
    return ScriptedEngine(lambda request: Reply(ids, rows or {}), EOS, **options)


def serve(one: ScriptedEngine, request: Generate) -> Generated:
    ticket = one.submit(request)
    ((done, result),) = one.step()
    assert done == ticket
    assert isinstance(result, Generated), result
    return result


def test_it_is_an_engine() -> None:
    one: Engine = engine(5, EOS)
    assert one.limits.max_watch == 128


@pytest.mark.parametrize(
    ("request_", "ids", "finish"),
    [
        (Generate((1,), 10), (5, 6, 7, EOS), Finish.EOS),
        (Generate((1,), 10, stop_ids=(6,)), (5, 6), Finish.STOP),
        (Generate((1,), 2), (5, 6), Finish.BUDGET),
        (Generate((1,), 2, stop_ids=(6,)), (5, 6), Finish.STOP),
    ],
)
def test_how_a_generation_ends(request_: Generate, ids: tuple[int, ...], finish: Finish) -> None:
    result = serve(engine(5, 6, 7, EOS, 9), request_)
    assert (result.token_ids, result.finish) == (ids, finish)


def test_the_context_ends_a_generation() -> None:
    one = engine(5, 6, 7, EOS, limits=Limits(max_model_len=4, vocab_size=100))
    result = serve(one, Generate((1, 2), 10))
    assert (result.token_ids, result.finish) == ((5, 6), Finish.CONTEXT)


def test_each_token_has_its_own_log_probability() -> None:
    given = ScriptedEngine(lambda request: Reply((5, 6, 7, EOS), logprobs=(-0.5, -2.0)), EOS)
    assert serve(given, Generate((1,), 10)).token_logprobs == (-0.5, -2.0, -0.759, -0.138)
    assert serve(given, Generate((1,), 1)).token_logprobs == (-0.5,)
    drawn = [unlike(position) for position in range(1000)]
    assert len(set(drawn)) == 1000
    assert (min(drawn), max(drawn)) == (-1.0, -0.001)


def test_watched_values() -> None:
    one = engine(5, 6, EOS, rows={1: {6: 0.5, 7: 0.25, 8: 0.0}})
    watched = serve(one, Generate((1,), 10, watch_ids=(5, 6, 7, 8))).watched
    assert watched.dtype == np.float32
    assert watched[0] == pytest.approx([math.log(0.9)] + [math.log(FLOOR)] * 3)
    assert watched[1] == pytest.approx([math.log(FLOOR), math.log(0.5), math.log(0.25), -math.inf])


def test_masking_takes_the_most_probable_of_the_allowed() -> None:
    one = engine(5, EOS, rows={0: {6: 0.2, 7: 0.3}})
    assert serve(one, Generate((1,), 1, allowed_ids=(6, 7))).token_ids == (7,)


def test_a_script_that_runs_out_is_a_fault_of_the_test() -> None:
    one = engine(5, 6)
    one.submit(Generate((1,), 10))
    with pytest.raises(ValueError, match="ends without EOS"):
        one.step()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Generate((), 1), "empty prompt"),
        (Generate((1,), 0), "max_tokens=0"),
        (Generate((1,) * 5000, 1), "does not fit a context of 4096"),
        (Generate((1,), 1, watch_ids=(1, 1)), "not distinct"),
        (Generate((1,), 1, allowed_ids=()), "allowed_ids is empty"),
        (Generate((1,), 1, adapter="x"), "unknown adapter 'x'"),
        (Generate((100_000,), 1), "token id 100000 is outside"),
    ],
)
def test_a_request_that_cannot_be_served_comes_back_failed(request_: Generate, reason: str) -> None:
    one = engine(5, EOS)
    one.submit(request_)
    one.submit(Generate((1,), 9))
    (_, bad), (_, good) = one.step()
    assert isinstance(bad, Failed)
    assert reason in bad.reason
    assert isinstance(good, Generated)


def test_a_scripted_failure_passes_through() -> None:
    one = ScriptedEngine(lambda request: Failed("no memory"), EOS)
    one.submit(Generate((1,), 1))
    assert one.step()[0][1] == Failed("no memory")


def test_batches_are_served_in_order() -> None:
    one = engine(5, EOS, batch=2)
    tickets = [one.submit(Generate((i,), 1)) for i in (1, 2, 3)]
    assert [t for t, _ in one.step()] == tickets[:2]
    assert [t for t, _ in one.step()] == tickets[2:]
    assert list(one.step()) == []


def test_aborted_requests_never_come_back() -> None:
    one = engine(5, EOS)
    tickets = [one.submit(Generate((i,), 1)) for i in (1, 2)]
    one.abort([tickets[0], 99])
    assert [t for t, _ in one.step()] == [tickets[1]]
    assert one.aborted == [tickets[0]]


def test_a_closed_engine_refuses() -> None:
    one = engine(5, EOS)
    one.close()
    one.close()
    with pytest.raises(EngineError, match="closed"):
        one.submit(Generate((1,), 1))
    with pytest.raises(EngineError, match="closed"):
        one.step()
