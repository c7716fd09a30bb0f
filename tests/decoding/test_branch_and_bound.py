"""Branch and bound: the same answer as of the full search from fewer tokens, and a record that says what it lacks.

`SELFRAG_REFERENCE=20000` (`make reference`) tries so many random trees.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_policies import policies, seeds, weights
from test_reference import World, failing, many
from written import Run, passages, run

from selfrag.decoding import writing
from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Status, Trace
from selfrag.errors import DecodingError
from selfrag.experiments.studies import recording, rescored
from selfrag.reflection.weights import Weights

prunable = st.builds(
    Decoding,
    mode=st.just("always"),
    passages=st.just(4),
    beam=st.integers(1, 2),
    max_segments=st.integers(1, 4),
    weights=weights | st.just(Weights(3, 0.5, 0.2)),
    likelihood=st.sampled_from(["segment", "product", "none"]),
    undefined=st.sampled_from(["skip", "zero", "force"]),
    accumulate=st.sampled_from(["mean", "mean", "mean", "sum", "product"]),
    forbid=st.sampled_from([{}, {}, {"isrel": "Irrelevant"}]),
    history=st.sampled_from(["text", "text+passages"]),
)
"""Settings under which many candidates can be given up."""
pace = st.sampled_from([None, 1, 3])
batch = st.sampled_from([1, 2, 1000])


def said(segments: Any) -> list[tuple[Any, ...]]:
    return [(s.text, s.citation, s.score) for s in segments]


def view(answer: Answer) -> tuple[Any, ...]:
    """What must be equal, to the last bit."""
    best = answer.trace.best
    return answer.text, said(answer.segments), None if best is None else answer.trace.nodes[best].path_score


def outcome(decode: Callable[[], Run | Answer]) -> tuple[Any, ...]:
    try:
        found = decode()
    except DecodingError as error:
        return (str(error),)
    if isinstance(found, Run):
        return (*view(found.answer), said(found.commits))
    return view(found)


@many
@given(seeds, policies | prunable, failing, st.booleans(), pace, batch, st.booleans())
def test_the_same_answer_as_of_the_full_search(
    seed: int, policy: Decoding, failures: float, given: bool, pace: int | None, batch: int, shuffled: bool
) -> None:
    """However the engine works, and whichever candidates wait for others."""
    world, draw = World(seed, failures=failures, given=given), random.Random(seed)
    pruning = replace(policy, branch_and_bound=True)
    with pytest.MonkeyPatch.context() as patch:
        if shuffled:
            patch.setattr(
                writing._Step, "_unpromising", lambda step: [i for i in list(step.nodes)[1:] if draw.random() < 0.5]
            )
        found = outcome(lambda: world.decoded(pruning, pace=pace, batch=batch))
    assert found == outcome(lambda: world.decoded(policy))


@many
@given(seeds, prunable, weights | st.just(Weights(3, 0.4, 0.2)), pace, batch)
def test_a_record_knows_what_it_lacks(
    seed: int, policy: Decoding, other: Weights, pace: int | None, batch: int
) -> None:
    world = World(seed)
    answer = world.decoded(replace(policy, branch_and_bound=True), pace=pace, batch=batch).answer
    assert Trace.from_json(answer.trace.to_json()) == answer.trace
    same = answer.rescore(policy.weights)
    assert same.exact
    assert view(same) == view(answer)
    both = zip(same.trace.nodes, answer.trace.nodes, strict=True)
    assert all(node == recorded for node, recorded in both if recorded.status is Status.BOUNDED)
    changed = answer.rescore(other)
    assert changed.exact == (other == policy.weights)
    back = replace(changed, trace=Trace.from_json(changed.trace.to_json())).rescore(policy.weights)
    assert (back.exact, view(back)) == (changed.exact, view(answer))


def branch(relevant: float, text: str, *, use: str = ".05 .05 .1 .3 .5", end: str = "</s>") -> str:
    return f"{{isrel {relevant} {1 - relevant:.2f}}}{text}{{issup .98 .01 .01}}{{isuse {use}}}{end}"


BEST = "0 0 0 0 1"
THREE = {
    "": "x",
    "[Retrieval]<d1>": (branch(0.99, "First answer.", use=BEST), 0.99),
    "[Retrieval]<d2>": (branch(0.98, "Second answer.", use=BEST), 0.99),
    "[Retrieval]<d3>": branch(0.01, "Nonsense of some length."),
}
SETTINGS = {"mode": "always", "max_segments": 2, "branch_and_bound": True}


def decoded(tree: dict[str, Any], *names: str, **changes: Any) -> Run:
    return run(tree, *names, **{**SETTINGS, **changes})


def test_an_irrelevant_passage_costs_one_token() -> None:
    found, full = (decoded(THREE, "d1", "d2", "d3", branch_and_bound=on) for on in (True, False))
    assert view(found.answer) == view(full.answer)
    (node,) = [one for one in found.answer.trace.nodes if one.status is Status.BOUNDED]
    assert node.passage == passages("d3")[0]
    assert node.finish == "no answer that begins with it reaches 3.465"
    assert len(node.token_ids) == 1
    assert found.engine.generated == full.engine.generated - len("Nonsense of some length.") - 3 + 1 - 1
    assert found.answer.usage.generated_tokens == found.engine.generated


def test_a_record_of_the_full_search_is_the_default() -> None:
    assert not Decoding().branch_and_bound
    assert "branch_and_bound" not in run(THREE, "d1", "d2", "d3", mode="always").answer.trace.as_dict()["decoding"]
    assert not recording([Decoding(branch_and_bound=True)]).branch_and_bound
    assert not Decoding(branch_and_bound=True, reflectors=("nli",)).prunes


def test_a_forbidden_passage_is_given_up_at_once() -> None:
    found = decoded(THREE, "d1", "d2", "d3", forbid={"isrel": "Irrelevant"}, max_segments=1)
    node = found.answer.trace.nodes[2]
    assert (node.status, node.finish, len(node.token_ids)) == (Status.FORBIDDEN, "its IsRel is not allowed", 1)


def test_one_that_may_still_end_in_the_best_answer_is_written_in_the_end() -> None:
    """It cannot enter the beam. But what the beam leads to is worse than what it says when it ends at once."""
    go_on, poor = "[No Retrieval]", "1 0 0 0 0"
    tree = {
        "": "x",
        "[Retrieval]<d1>": (branch(0.99, "First.", use=BEST, end=go_on), 0.99),
        "[Retrieval]<d2>": (branch(0.98, "Second.", use=BEST, end=go_on), 0.99),
        "[Retrieval]<d3>": (branch(0.8, "Third."), 0.9),
    }
    for name, text in (("d1", "First."), ("d2", "Second.")):
        before = f"[Retrieval]<{name}>[Relevant]{text}[Fully supported][Utility:5]"
        for other in ("d1", "d2", "d3"):
            tree[f"{before}[Retrieval]<{other}>"] = (branch(0.3, f"Worse {other}.", use=poor), 0.2)
    found, full = (decoded(tree, "d1", "d2", "d3", branch_and_bound=on) for on in (True, False))
    assert full.answer.text == found.answer.text == "Third."
    assert view(found.answer) == view(full.answer)
    assert said(found.commits) == said(full.answer.segments)
    assert len(found.engine.aborted) >= 1


def test_sweeps_take_a_pruned_record_for_its_weights_only() -> None:
    answer = decoded(THREE, "d1", "d2", "d3", max_segments=1).answer
    policy = answer.trace.decoding
    plain = replace(policy, branch_and_bound=False)
    same, fewer = rescored(answer.trace, {}, [plain, replace(policy, beam=1)])
    assert same is not None
    assert same.exact
    assert fewer is None
