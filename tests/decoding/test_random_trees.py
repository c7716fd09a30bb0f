"""Properties of decoding and rescoring on thousands of small random trees."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_model import random_model, random_search
from random_policies import policies, seeds, weights
from written import Run, run

from selfrag.decoding.answer import sweep
from selfrag.decoding.policy import Decoding
from selfrag.decoding.rescore import replay
from selfrag.decoding.trace import UNUSABLE, Trace
from selfrag.errors import UserError
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.weights import Weights

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
    assert Trace.from_json(answer.trace.to_json()) == answer.trace
    assert json.dumps(answer.as_dict())


@quick
@given(seeds, policies, st.lists(weights, min_size=1, max_size=5))
def test_a_sweep_is_many_rescorings_there_and_back(seed: int, policy: Decoding, others: list[Weights]) -> None:
    answer = decoded(seed, policy).answer
    assert answer.rescore(weights=policy.weights, threshold=policy.threshold) == answer
    tried = [policy.weights, *others, policy.weights]
    best, exact = sweep([answer, answer], tried)
    assert best.shape == exact.shape == (2, len(tried))
    for column, one in enumerate(tried):
        rescored = answer.rescore(one)
        assert (best[0, column] if best[0, column] >= 0 else None) == rescored.trace.best
        assert best[1, column] == best[0, column]
        assert exact[0, column] == rescored.exact
        assert rescored.rescore(policy.weights) == answer


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


@pytest.mark.parametrize("text", ["[]", "null", '{"decisions": [], "nodes": [{}], "question": "Q"}'])
def test_what_is_no_trace_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="this is no trace in JSON"):
        Trace.from_json(text)


def test_a_replay_of_nothing_is_nothing() -> None:
    trace = replace(decoded(0, Decoding(max_segments=1)).answer.trace, nodes=(), decisions=(), best=None)
    assert list(replay(trace, [Weights()]).best) == [-1]
    assert sweep([], [Weights()])[0].shape == (0, 1)
