"""Down- and up-sampling: shares, seeds, and that a swap leaves a target that makes sense."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted_critic import CountingRetriever, ScriptedCritic, pair, passages, spans

from critic.augment.algorithm import BALANCES, Augmented, AugmentOptions, Balance, augment
from critic.augment.rows import row, variants
from critic.augment.run import drive
from selfrag.training.rows import Token


def augmented(rule, output: str = "Paris", **changes) -> Augmented:
    steps = augment(pair(output, **changes), AugmentOptions(shortest=0), spans)
    (found,) = drive([steps], ScriptedCritic(rule), CountingRetriever(lambda query: passages("d1", "d2", "d3")))
    assert isinstance(found, Augmented)
    return found


def mixed(case):
    return "Irrelevant" if case.group == "IsRel" and case.evidence.id != "d1" else ...


def unaided(case):
    return "No Retrieval" if case.group == "Retrieve" else ...


def many(found: Augmented, balance: Balance, seed: int = 0, count: int = 4000) -> list[list[str]]:
    each = (replace(found, pair=replace(found.pair, id=f"q{n}")) for n in range(count))
    return [[variant.suffix for variant in variants(one, balance, seed)] for one in each]


@pytest.mark.parametrize(("name", "share"), [("none", 1.0), ("paper", 0.5), ("official", 0.4)])
def test_rows_without_retrieval_are_down_sampled(name: str, share: float) -> None:
    kept = [bool(found) for found in many(augmented(unaided), BALANCES[name])]
    assert sum(kept) / len(kept) == pytest.approx(share, abs=0.03)
    assert all(many(augmented(mixed), BALANCES[name]))
    once = many(augmented(unaided), BALANCES[name], seed=1, count=50)  # seeded, whatever the neighbours
    assert once == many(augmented(unaided), BALANCES[name], seed=1, count=99)[:50]
    assert name == "none" or once != many(augmented(unaided), BALANCES[name], seed=2, count=50)


def test_an_irrelevant_passage_is_added_as_a_row_of_its_own() -> None:
    found = many(augmented(mixed), BALANCES["paper"])
    assert sum(len(suffixes) == 2 for suffixes in found) / len(found) == pytest.approx(0.25, abs=0.03)
    assert set(map(tuple, found)) == {("",), ("", "#irrelevant")}
    plain, other = variants(augmented(mixed), Balance(irrelevant=1.0), 0)
    assert [part.token for part in row(plain).target if isinstance(part, Token)][1] == "[Relevant]"
    tokens = [part.token for part in row(other).target if isinstance(part, Token)]
    assert tokens == ["[Retrieval]", "[Irrelevant]", "[Utility:5]"]
    assert row(other).id == "q1#irrelevant"
    (only,) = variants(augmented(mixed), Balance(irrelevant=1.0, mode="swap"), 0)
    assert (row(only).id, "swapped in" in only.why) == ("q1", True)
    assert only.augmented.segments[0].candidate.passage.id in {"d2", "d3"}


@pytest.mark.parametrize(
    ("rule", "changes"),
    [(None, {}), (mixed, {"kind": "long_form"}), (lambda c: "Irrelevant" if c.group == "IsRel" else ..., {})],
)
def test_nothing_is_added_without_an_irrelevant_passage_or_for_other_kinds(rule, changes: dict) -> None:
    assert [v.suffix for v in variants(augmented(rule, **changes), Balance(irrelevant=1.0), 0)] == [""]


def test_a_passage_that_is_continued_with_after_a_sentence_of_opinion_stays() -> None:
    said = {"Two.": "No Retrieval", "Three.": "Continue to Use Evidence"}
    found = augmented(lambda c: said.get(c.output, mixed(c)) if c.group == "Retrieve" else mixed(c), "One. Two. Three.")
    assert [segment.token for segment in found.segments[1:]] == ["No Retrieval", "Continue to Use Evidence"]
    assert found.segments[2].used == found.segments[0].candidate.passage.id
    assert len(variants(found, Balance(irrelevant=1.0), 0)) == 1
