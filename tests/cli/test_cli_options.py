"""Options of `selfrag ask` become the `Decoding` that a Python caller would write."""

from __future__ import annotations

import pytest

from selfrag.cli.options import constraints, decoding, intrinsics, joined
from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.reflection.weights import Weights


def test_one_weight_leaves_the_others_of_the_preset() -> None:
    assert decoding("paper", {}, {"isrel": None, "issup": 2.0, "isuse": None}).weights == Weights(1.0, 2.0, 0.5)
    short = decoding("official", {"max_segments": 1}, {"isrel": 0.0})
    assert short.weights == Weights(0.0, 1.0, Decoding.official(max_segments=1).weights.isuse)


def test_constraints_on_one_group_add_up() -> None:
    pairs = ["issup=Fully supported", " issup = Partially supported", "isuse=5"]
    given = constraints("--require", pairs)
    assert given == {"issup": ["Fully supported", "Partially supported"], "isuse": ["5"]}
    assert decoding("paper", {"require": given}, {}) == Decoding(require=given or {})
    assert constraints("--require", []) is None


@pytest.mark.parametrize("pair", ["issup", "issup=", "=Fully supported", ""])
def test_a_constraint_that_is_no_pair_is_refused(pair: str) -> None:
    with pytest.raises(UserError, match=r"GROUP=LABEL"):
        constraints("--require", [pair])


def test_joined_reflectors_and_guardrails_become_the_policy() -> None:
    changes = {
        "reflectors": ["citation_generation", "hallucination_detection=issup"],
        "gates": ["answerability<0.5:write"],
    }
    weights = {"issup": 2.0, "isrel": None, "joined": joined(["citation_generation=0.25"])}
    made = decoding("paper", changes, weights)
    assert str(made.weights) == "isrel=1,issup=2,isuse=0.5,+citation_generation=0.25"
    assert [str(part) for part in made.reflectors] == changes["reflectors"]
    assert intrinsics(made) == ("citation_generation", "hallucination_detection", "answerability")
    assert intrinsics(decoding("official", {}, {})) == ()
    with pytest.raises(UserError, match="--w-join 'x=y'"):
        joined(["x=y"])
