"""What the transformers engine does not compute twice, and that sharing never changes a result."""

from __future__ import annotations

import pytest
from pump import generated, serve

from selfrag.decoding.requests import Generate

pytestmark = pytest.mark.engine

QUESTION = tuple(range(5, 105))
PASSAGES = [tuple(range(110 + 20 * k, 140 + 20 * k)) for k in range(5)]


def new_tokens(passes) -> list[int]:
    return [tokens for _, tokens in passes]


def candidates(question=QUESTION, tokens=1) -> list[Generate]:
    return [Generate(question + passage, tokens, watch_ids=(3, 4)) for passage in PASSAGES]


def test_cached_tokens_add_up_to_what_was_not_computed(counting):
    engine, passes = counting(max_batch=32)
    task = tuple(range(300, 340))  # an instruction that all questions share
    wave = [r for first in (5, 6, 7) for r in candidates((*task, first, *QUESTION))]
    results = serve(engine, wave)
    assert sum(new_tokens(passes)) == sum(
        len(r.prompt_ids) - g.cached_tokens for r, g in zip(wave, results, strict=True)
    )
    assert sum(new_tokens(passes)) == 40 + 3 * 101 + 15 * 30


def test_a_decision_pays_for_the_candidates_and_a_candidate_for_the_next_segment(counting):
    engine, passes = counting()
    assert generated(engine, Generate(QUESTION, 1)).cached_tokens == 0
    results = serve(engine, candidates(tokens=8))
    assert [result.cached_tokens for result in results] == [100] * 5
    best = candidates()[2].prompt_ids + results[2].token_ids
    before = sum(new_tokens(passes))
    nxt = generated(engine, Generate((*best, 7), 1))
    # Of the answer so far only its newest token had not been through the model.
    assert nxt.cached_tokens == len(best) - 1
    assert sum(new_tokens(passes)) - before == 2


def test_the_budget_bounds_what_is_kept(counting):
    engine, _ = counting(prefix_cache_mib=1)
    serve(engine, [Generate(tuple(range(5 + i, 305 + i)), 1) for i in range(30)])
    assert 0 < engine._prefixes.size <= 1 << 20


@pytest.mark.parametrize("limit", [1, 40, 10_000])
def test_prefill_in_small_passes_changes_nothing(counting, limit):
    engine, _ = counting(max_prefill_tokens=limit, prefix_cache_mib=0)
    whole, _ = counting(prefix_cache_mib=0)
    wave = [*candidates(tokens=4), Generate((9, 10, 11), 4, watch_ids=(3, 4))]
    for got, want in zip(serve(engine, wave), serve(whole, wave), strict=True):
        assert got.token_ids == want.token_ids
        assert got.watched == pytest.approx(want.watched, abs=1e-4)


def test_rows_run_together_and_leave_when_finished(counting):
    engine, passes = counting(max_batch=4)
    lengths = [2, 4, 6, 8]
    serve(engine, [Generate((5 + i, 6), n, allowed_ids=(8, 9)) for i, n in enumerate(lengths)])
    assert new_tokens(passes) == [8, 4, 3, 3, 2, 2, 1, 1]
