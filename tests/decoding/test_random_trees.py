"""Properties of decoding and rescoring on thousands of small random trees."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_model import random_model, random_search
from random_policies import policies, seeds, weights
from written import Run, run

from selfrag.decoding.answer import sweep
from selfrag.decoding.policy import Decoding
from selfrag.decoding.rescore import replay
from selfrag.decoding.trace import UNUSABLE
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.weights import Weights

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decoded(seed: int, policy: Decoding) -> Run:
    return run(random_model(seed), search=random_search(seed), policy=policy)


@quick
@given(seeds, policies)
def test_every_answer_is_whole(seed: int, policy: Decoding) -> None:
    found = decoded(seed, policy)
    answer = found.answer
    for segment in answer.segments:
        assert answer.text[segment.start : segment.end] == segment.text
        assert segment.text.strip()
    assert "".join(s.text for s in answer.segments).replace(" ", "") == answer.text.replace(" ", "")
    assert not any(token in answer.text for token in TOKENS)
    assert len(answer.segments) <= policy.max_segments
    texts = [tuple(node.text_ids) for node in answer.trace.path(answer.trace.best) if node.text.strip()]
    assert len(set(texts)) == len(texts)
    assert [(s.text, s.start, s.end) for s in found.commits] == [(s.text, s.start, s.end) for s in answer.segments]
    for node in answer.trace.path(answer.trace.best):
        assert node.status not in UNUSABLE
    for segment in answer.segments:
        if segment.citation is not None:
            assert segment.citation.id in {p.id for d in answer.trace.decisions for p in d.passages}
    assert answer.usage.requests == len(found.engine.requests)
    assert answer.usage.searches == len(found.searches.queries)
    assert json.loads(answer.trace.to_json()) == answer.trace.as_dict()
    assert json.dumps(answer.as_dict())


@quick
@given(seeds, policies)
def test_rescoring_with_the_recorded_settings_changes_nothing(seed: int, policy: Decoding) -> None:
    answer = decoded(seed, policy).answer
    assert answer.rescore(weights=policy.weights, threshold=policy.threshold) == answer
    best, exact = sweep([answer], np.array([policy.weights.vector] * 3 + [(0.3, 0.2, 0.1)]))
    assert list(best[0, :3]) == [-1 if answer.trace.best is None else answer.trace.best] * 3
    assert exact[0, :3].all()


@quick
@given(seeds, policies, weights, st.none() | st.sampled_from([0.0, 0.3, 0.9]))
def test_an_exact_rescoring_is_what_a_fresh_decode_gives(
    seed: int, policy: Decoding, other: Weights, threshold: float | None
) -> None:
    rescored = decoded(seed, policy).answer.rescore(other, threshold)
    wanted = replace(policy, weights=other, threshold=policy.threshold if threshold is None else threshold)
    if rescored.exact:
        fresh = decoded(seed, wanted).answer
        assert rescored.text == fresh.text
        assert rescored.segments == tuple(
            replace(s, node=r.node) for s, r in zip(fresh.segments, rescored.segments, strict=True)
        )
    assert rescored.trace.decoding == wanted


@quick
@given(seeds, policies, weights)
def test_a_tree_recorded_whole_is_exact_for_every_weight(seed: int, policy: Decoding, other: Weights) -> None:
    whole = replace(policy, beam=10_000, max_segments=min(3, policy.max_segments), passages=min(2, policy.passages))
    answer = decoded(seed, whole).answer
    rescored, fresh = answer.rescore(other), decoded(seed, replace(whole, weights=other)).answer
    # A merged twin is not written on from: if other weights prefer it, its own continuations are unknown.
    unknown = [n for n in answer.trace.nodes if n.status == "merged" and not n.ended and n.depth < whole.max_segments]
    if not unknown:
        assert rescored.exact
        assert rescored.trace.nodes == fresh.trace.nodes
    if rescored.exact:
        assert rescored.text == fresh.text


@quick
@given(seeds, policies, st.lists(weights, min_size=1, max_size=5))
def test_a_sweep_is_many_rescorings(seed: int, policy: Decoding, many: list[Weights]) -> None:
    answer = decoded(seed, policy).answer
    best, exact = sweep([answer, answer], many)
    assert best.shape == exact.shape == (2, len(many))
    for column, one in enumerate(many):
        rescored = answer.rescore(one)
        assert (best[0, column] if best[0, column] >= 0 else None) == rescored.trace.best
        assert exact[0, column] == rescored.exact
        assert best[1, column] == best[0, column]


@quick
@given(seeds, policies, weights)
def test_rescoring_there_and_back(seed: int, policy: Decoding, other: Weights) -> None:
    answer = decoded(seed, policy).answer
    assert answer.rescore(other).rescore(policy.weights) == answer


@quick
@given(seeds, policies, weights, st.none() | st.sampled_from([0.0, 0.3, 0.9]))
def test_closed_sets_rescore_exactly(seed: int, policy: Decoding, other: Weights, threshold: float | None) -> None:
    def choose(settings: Decoding) -> Run:
        model = random_model(seed)
        return run(model, search=random_search(seed), policy=settings, choices=["A", "AB", "Bob", "C"])

    answer = choose(policy).answer
    if answer.trace.best is not None:
        assert answer.text in ("A", "AB", "Bob", "C")
    assert answer.rescore(policy.weights, policy.threshold) == answer
    rescored = answer.rescore(other, threshold)
    if threshold is None:
        assert rescored.exact
    if rescored.exact:
        wanted = replace(policy, weights=other, threshold=policy.threshold if threshold is None else threshold)
        fresh = choose(wanted).answer
        assert rescored.text == fresh.text
        assert [s.score for s in rescored.segments] == pytest.approx([s.score for s in fresh.segments])


def test_a_replay_of_nothing_is_nothing() -> None:
    trace = replace(decoded(0, Decoding(max_segments=1)).answer.trace, nodes=(), decisions=(), best=None)
    assert list(replay(trace, [Weights()]).best) == [-1]
    assert sweep([], [Weights()])[0].shape == (0, 1)
