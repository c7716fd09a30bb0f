"""The scripted engine obeys the same protocol and the same refusals as the real ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.scripted import FLOOR, Reply, ScriptedEngine

EOS = 0


def engine(*ids: int, rows: dict[int, dict[int, float]] | None = None, **options: object) -> ScriptedEngine:
    return ScriptedEngine(lambda request: Reply(ids, rows or {}), EOS, **options)


def serve(one: ScriptedEngine, request: Generate) -> Generated:
    ticket = one.submit(request)
    ((done, result),) = one.step()
    assert done == ticket
    assert isinstance(result, Generated), result
    return result


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


def test_watched_values() -> None:
    one = engine(5, 6, EOS, rows={1: {6: 0.5, 7: 0.25, 8: 0.0}})
    watched = serve(one, Generate((1,), 10, watch_ids=(5, 6, 7, 8))).watched
    assert watched.dtype == np.float32
    assert watched[0] == pytest.approx([math.log(0.9)] + [math.log(FLOOR)] * 3)
    assert watched[1] == pytest.approx([math.log(FLOOR), math.log(0.5), math.log(0.25), -math.inf])


def test_masking_takes_the_most_probable_of_the_allowed() -> None:
    one = engine(5, EOS, rows={0: {6: 0.2, 7: 0.3}})
    assert serve(one, Generate((1,), 1, allowed_ids=(6, 7))).token_ids == (7,)


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
