"""Generations read strictly: answer, citations, explanation, and what the explanation claims."""

from __future__ import annotations

import pytest
from grid_world import item
from hypothesis import given
from hypothesis import strategies as st

from selfrag.experiments.self_interpretation.grid import DIRECT, Trial
from selfrag.experiments.self_interpretation.replies import (
    Claim,
    Reply,
    citations,
    credited,
    followed_example,
    order_claim,
    read_reply,
    scored,
)

GIVEN = ("wm1", "wm12", "x.y")


@pytest.mark.parametrize(
    ("text", "cited", "wrong"),
    [
        ("Aare [wm1, wm12; x.y] and Inn [wm12].", ("wm1", "wm12", "x.y"), ()),
        ("Aare [WM1], [wm1 wm12], [Context ID: wm1]", (), ("WM1", "wm1 wm12", "Context ID: wm1")),
        ("Aare [wm2] [] [ ] (wm1) wm12 [wm1\n]", (), ("wm2",)),
        ("[[wm1]]", ("wm1",), ()),
    ],
)
def test_a_citation_is_ids_in_square_brackets_and_nothing_else(text, cited, wrong):
    assert citations(text, GIVEN) == (cited, wrong)


@pytest.mark.parametrize(
    ("text", "answer", "explanation"),
    [
        ("Aare [wm1]. I think so, as it says that.", "Aare [wm1].", "I think so, as it says that."),
        ("Aare [wm1]\n\nThe first context names it.", "Aare [wm1]", "The first context names it."),
        ("Aare [wm1].\nExplanation: it is named.", "Aare [wm1].", "it is named."),
        ("Aare [wm1].\n---\n**Explanation:** it is named.", "Aare [wm1].", "** it is named."),
        ("Because it is named.", "Because it is named.", None),
        ("", "", None),
    ],
)
def test_answer_and_explanation(text, answer, explanation):
    reply = read_reply(text, GIVEN, explains=True)
    assert (reply.answer, reply.explanation) == (answer, explanation)
    assert read_reply(text, GIVEN, explains=False).explanation is None


def test_lines_of_the_prompt_that_the_model_went_on_with_are_not_its_answer():
    text = "Aare [wm1]\n(/example)\n(example)\nQUESTION: What?\nANSWER: Inn [wm12]"
    reply = read_reply(text, GIVEN, explains=False, ends=("(example)", "(/example)"))
    assert (reply.answer, reply.cited, reply.ran_on) == ("Aare [wm1]", ("wm1",), True)


def test_contexts_that_an_explanation_names():
    reply = read_reply("Aare [wm1]. I think so, as wm12 (and x.y) say it, not wm123.", GIVEN, explains=True)
    assert reply.named == ("wm12", "x.y")
    assert credited(reply) == GIVEN
    assert read_reply("Aare. I think of a-wm1 wm1-b xx.y x_y", GIVEN, explains=True).named == ()


@pytest.mark.parametrize(
    ("said", "claim"),
    [
        ("I would have given the same answer.", Claim.SAME),
        ("I would still have answered Aare.", Claim.SAME),
        ("I would have answered Aare.", Claim.SAME),
        ("I would have given a different answer.", Claim.CHANGES),
        ("I would not have given the same answer.", Claim.CHANGES),
        ("The same facts hold, but I would have given a different answer.", None),
        (None, None),
    ],
)
def test_what_a_counterfactual_explanation_claims(said, claim):
    assert order_claim(Reply("Aare [wm1]", said)) == claim


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("The first example, because it lists rivers.", 1),
        ("Second. It is alike.", 2),
        ("Both the first example and the second one.", None),
        (None, None),
    ],
)
def test_the_example_that_was_followed(said, number):
    assert followed_example(Reply("Aare", said)) == number


@given(st.text(alphabet=st.sampled_from("aB [];,.:\n-1wm2ANSWER(example)because I think"), max_size=80), st.booleans())
def test_whatever_a_model_writes_is_read(text, explains):
    reply = read_reply(text, GIVEN, explains=explains)
    assert set(reply.cited) <= set(GIVEN)
    assert not set(reply.wrong) & set(GIVEN)
    assert reply.answer in text
    assert reply.explanation is None or reply.explanation in text
    order_claim(reply)
    followed_example(reply)


@pytest.mark.parametrize("unit", ["\n", " ", "\n ", "- ", ".\n", "why", "because ", ", ", "[", "*\n"])
def test_a_reply_is_read_in_linear_time(growth, unit):
    def make(length: int) -> str:
        return f"Paris{unit * (length // len(unit))}x"

    assert growth(make, lambda text: read_reply(text, ["1"], explains=True), 2**15) < 8


def test_figures_of_one_reply_by_hand():
    # Two answers and two relevant passages among three; the reply has one answer, cites one relevant passage, one that
    # is not, and something that was never given.
    one = Trial(item(1), DIRECT, item(1).passages[:3])
    text = "Aare [p1a][p1c][zz]. I think so, as Brenta River [p1b] is in it."
    found = scored(one, read_reply(text, one.passage_ids, explains=True), {"p1a", "p1b"}, text)
    assert found == {
        "answer_recall": (0.5, 1.0),
        "citation_precision": (pytest.approx(1 / 3), 1.0),
        "citation_recall": (0.5, 1.0),
        "citation_f": (pytest.approx(0.4), 1.0),  # 2 (1/3) (1/2) / (5/6)
        "whole_answer_recall": (1.0, 1.0),
        "whole_citation_precision": (0.5, 1.0),
        "whole_citation_recall": (1.0, 1.0),
        "whole_citation_f": (pytest.approx(2 / 3), 1.0),
        "answer_recall_words": (0.5, 1.0),
        "cites": (1.0, 1.0),
        "wrong_citations": (1.0, 3.0),
        "explains": (1.0, 1.0),
    }
    assert scored(one, Reply("Aare"), ())["citation_f"] is None
