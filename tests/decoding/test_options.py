"""Closed sets: exact option probabilities after every passage, aggregated with the critique."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from written import FIRST_CHARACTER, LIMITS, RESPONSE, VOCABULARY, Run, run, seen

from selfrag.decoding.options import normalised
from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.scripted import Reply
from selfrag.errors import DecodingError, UserError
from selfrag.reflection.labels import group
from selfrag.reflection.weights import Weights

Table = Mapping[str, Mapping[str, float]]


def speller(table: Table) -> Callable[[Generate], Reply | Failed]:
    """A model given by probabilities of the next symbol (a character or a reflection token) after each response."""

    def reply(request: Generate) -> Reply | Failed:
        response = seen(request.prompt_ids).partition(RESPONSE)[2]
        row = table.get(response)
        if row is None:
            raise AssertionError(f"nothing is known after {response!r}")
        if "fail" in row:
            return Failed("no memory")
        ids = {VOCABULARY.ids.get(s, 0 if s == "</s>" else FIRST_CHARACTER + ord(s[0])): p for s, p in row.items()}
        return Reply((max(ids, key=lambda i: ids[i]),), {0: ids})

    return reply


def isrel(relevant: float) -> dict[str, float]:
    return {"[Relevant]": relevant, "[Irrelevant]": 1 - relevant}


def levels(name: str, *values: float) -> dict[str, float]:
    return dict(zip(group(name).tokens, values, strict=True))


NEUTRAL = levels("issup", 0, 0, 1) | levels("isuse", 0, 0, 1, 0, 0)
"""Support 0 and utility 0: the passage's weight is its relevance alone."""


def two_passages(a_after_d1: float, a_after_d2: float) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for name, p in (("d1", a_after_d1), ("d2", a_after_d2)):
        here = f"[Retrieval]<{name}>"
        table[here] = isrel(0.8 if name == "d1" else 0.4)
        judged = here + ("[Relevant]" if name == "d1" else "[Irrelevant]")
        table[judged] = {"A": p, "B": 1 - p}
        for option in "AB":
            table[judged + option] = NEUTRAL
            table[judged + option + "[No support / Contradictory]"] = NEUTRAL
    return table


def choose(table: Table, *choices: str, names: tuple[str, ...] = ("d1", "d2"), **options: object) -> Run:
    settings = {"mode": "always", "undefined": "zero", **options}
    return run(speller(table), *names, choices=choices, **settings)


def test_defect_40_option_likelihood() -> None:
    """Weights (2, 1), p(A) = (0.1, 0.9), p(B) = (0.9, 0.1): A = 1.1, B = 1.9, so B; a vote over strings would tie."""
    found = choose(two_passages(0.1, 0.9), "A", "B", weights=Weights(isrel=2.5))  # 2.5 * (0.8, 0.4) = (2, 1)
    assert found.answer.text == "B"
    totals = {node.text: node.path_score for node in found.answer.trace.nodes}
    assert totals == pytest.approx({"A": 1.1, "B": 1.9})


def test_equation_3_adds_the_critique_to_the_probability() -> None:
    """p(A) = .95 with critique .9, p(B) = .05 with 1.9: the product says A (.855 and .095), the sum B (1.85, 1.95)."""
    here = "[Retrieval]<d1>"
    table = {here: isrel(0.9), here + "[Relevant]": {"A": 0.95, "B": 0.05}}
    for option, support in (("A", (0, 0, 1)), ("B", (1, 0, 0))):
        label = "[Fully supported]" if support[0] else "[No support / Contradictory]"
        table |= {here + "[Relevant]" + option: levels("issup", *support)}
        table |= {here + "[Relevant]" + option + label: levels("isuse", 0, 0, 1, 0, 0)}
    for aggregate, text, scores in (("product", "A", (0.855, 0.095)), ("sum", "B", (1.85, 1.95))):
        found = choose(table, "A", "B", names=("d1",), aggregate=aggregate)
        assert found.answer.text == text
        assert [node.path_score for node in found.answer.trace.nodes] == pytest.approx(scores)
        assert found.answer.rescore(Weights(issup=0)).text == "A"


SHARED = {
    "[No Retrieval]": {"N": 0.5, "Y": 0.5},
    "[No Retrieval]N": {"o": 1.0},
    "[No Retrieval]No": {"t": 0.4, "</s>": 0.5, "[Utility:5]": 0.1},
    "[No Retrieval]Y": {"e": 0.8},
    "[No Retrieval]Ye": {"s": 0.5},
    "[No Retrieval]Not": NEUTRAL,
    "[No Retrieval]Yes": NEUTRAL,
}


def test_an_option_that_begins_another_must_end_there() -> None:
    """p(No) = 0.5 * (0.5 + 0.1) for what may end it, p(Not) = 0.5 * 0.4, p(Yes) = 0.5 * 0.8 * 0.5."""
    table = SHARED | {"[No Retrieval]No": SHARED["[No Retrieval]No"] | levels("isuse", 0, 0, 0, 0, 0.1)}
    found = choose(table, "No", "Not", "Yes", mode="never")
    likelihoods = [node.likelihood for node in found.answer.trace.nodes]
    assert likelihoods == pytest.approx([0.3 / 0.7, 0.2 / 0.7, 0.2 / 0.7], abs=1e-6)


def test_shared_beginnings_are_asked_once() -> None:
    found = choose(SHARED, "No", "Not", "Yes", mode="never")
    beginnings = ["[No Retrieval]", "[No Retrieval]N", "[No Retrieval]No", "[No Retrieval]Y", "[No Retrieval]Ye"]
    assert sorted(found.prompts[:5]) == beginnings
    assert all(request.max_tokens == 1 for request in found.engine.requests)


def test_length_is_taken_out_by_tokens_or_characters() -> None:
    """A is as likely as a text of 1.5 characters, the average, with 0.3 for each; Bb with sqrt(0.25) = 0.5 for each."""
    table = {
        "[No Retrieval]": {"A": 0.3, "B": 0.5},
        "[No Retrieval]B": {"b": 0.5},
        "[No Retrieval]A": NEUTRAL,
        "[No Retrieval]Bb": NEUTRAL,
    }
    assert choose(table, "A", "Bb", mode="never").answer.text == "A"  # 0.3 against 0.25
    for length in ("tokens", "characters"):
        found = run(speller(table), choices=["A", "Bb"], mode="never", length=length)
        assert found.answer.text == "Bb"
        assert found.answer.trace.nodes[1].likelihood == pytest.approx(0.5**1.5 / (0.5**1.5 + 0.3**1.5))
    with pytest.raises(UserError, match="length='words': choose one of none, tokens, characters"):
        run(speller(table), choices=["A", "Bb"], mode="never", length="words")  # type: ignore[arg-type]


def test_tokens_and_characters_are_counted_apart() -> None:
    """Log-probabilities -2 and -3 of one token each; four and twelve characters, eight on average."""
    texts, ids = ["long", "rather long."], [(1,), (2,)]
    assert normalised([-2, -3], texts, ids) == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    assert normalised([-2, -3], texts, ids, "tokens") == normalised([-2, -3], texts, ids)
    by_character = normalised([-2, -3], texts, ids, "characters")  # -0.5 * 8 against -0.25 * 8
    assert by_character == pytest.approx([1 / (1 + math.exp(2)), 1 / (1 + math.exp(-2))])
    assert normalised([-2, -3], texts, [(), ()], "tokens") == normalised([-2, -3], texts, ids)


def test_nothing_could_be_scored() -> None:
    with pytest.raises(DecodingError, match="no option could be scored: no memory"):
        choose({"[No Retrieval]": {"fail": 1.0}}, "A", "B", mode="never")


def test_the_engine_says_how_many_ids_one_request_may_watch() -> None:
    options = [chr(0x4E00 + i) for i in range(30)]
    table = {"[No Retrieval]": dict.fromkeys(options, 1 / 60) | {options[20]: 0.5}}
    table |= {f"[No Retrieval]{o}": NEUTRAL for o in options}
    narrow = replace(LIMITS, max_watch=20)
    found = run(speller(table), choices=options, mode="never", undefined="zero", limits=narrow)
    assert found.answer.text == options[20]
    assert max(len(request.watch_ids) for request in found.engine.requests) == 20


@pytest.mark.parametrize("wrong", [[], ["A"], "AB", ["A", "A"], ["A", " "], ["A", 1]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(UserError, match="option"):
        run({}, choices=wrong, mode="never")
