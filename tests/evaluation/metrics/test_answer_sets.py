"""Questions with several right answers: every figure by hand, and the readings of "contains" apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import (
    LISTS,
    answer_recall,
    answer_recall_words,
    list_figures,
    listed,
    str_em,
    str_hit,
)
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import METRICS, harmonic, ratio
from selfrag.evaluation.normalisation import first_line, lifted, marks, without_marks

ANSWER_RECALL = METRICS["answer_recall"]
STR_EM = METRICS["str_em"]
STR_HIT = METRICS["str_hit"]

SETS = (("New York", "NYC"), ("The Beatles",), ("Caf\u00e9",))
SEVERAL = Item("q", "which?", True, answer_sets=SETS)
FLAT = Item("q", "who?", True, answers=("Ann", "Anne"))


def test_three_readings_of_contains() -> None:
    text = "It was NYC, where beatles lived [1]."
    assert answer_recall(text, SETS) == pytest.approx(1 / 3)  # "beatles" is not "The Beatles" letter for letter
    assert str_em(text, SETS) == pytest.approx(2 / 3)
    assert answer_recall_words(text, SETS) == pytest.approx(2 / 3)
    assert answer_recall("a nyctalope", SETS) == 0.0
    assert str_em("a nyctalope", SETS) == pytest.approx(1 / 3)  # a substring, as in ALCE
    assert answer_recall_words("a nyctalope", SETS) == 0.0


def test_str_em_reads_the_first_line_and_no_citation_marks() -> None:
    assert str_em("New [1] York\nThe Beatles", SETS) == pytest.approx(1 / 3)
    assert answer_recall_words("New York.\nThe Beatles", SETS) == pytest.approx(2 / 3)
    assert str_em("\n\n New York", SETS) == pytest.approx(1 / 3)


def test_a_form_of_articles_or_marks_alone_is_never_contained() -> None:
    assert str_em("anything", [["The"], ["?"], [""]]) == 0.0
    assert answer_recall("anything", [[""]]) == 0.0


def test_hit_needs_all() -> None:
    assert str_hit("NYC, beatles, caf\u00e9", SETS) == 1.0
    assert str_hit("NYC, beatles", SETS) == 0.0


def test_figures_over_items() -> None:
    parts = [STR_EM.part(SEVERAL, Output("NYC")), STR_EM.part(FLAT, Output("by anne")), STR_EM.part(FLAT, None)]
    assert ratio(parts) == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert ANSWER_RECALL.part(FLAT, Output("by anne")) == (0.0, 1.0)
    assert STR_HIT.part(Item("q", "?", True), Output("x")) is None


def test_wrong_shapes_are_refused() -> None:
    for wrong in ("Paris", [], ["Paris"], [[]]):
        with pytest.raises(UserError, match="list of lists"):
            str_em("Paris", wrong)


def test_marks() -> None:
    assert lifted("It [1] was [2, 3].") == ("It was.", ((2, 1), (6, 2), (6, 3)))
    assert marks("It was 1990 [2][3, 1]; see [a] and [12].") == (2, 3, 1, 12)
    assert without_marks("It was 1990 [2][3, 1]; see [a].") == "It was 1990; see [a]."
    assert first_line(" \n a b \n c") == "a b"
    assert first_line("") == ""


def test_qampari_by_hand() -> None:
    gold = [["Big Ben"], ["Nelson's Column", "the column of Nelson"], ["Hyde Park"]]
    found = list_figures("Big Ben, Column of Nelson, Eiffel Tower [1].\nHyde Park", gold)
    assert [found[f"list_{name}"] for name in ("length", "precision", "recall", "recall_5", "f1")] == pytest.approx(
        [3, *[2 / 3] * 4]
    )


def test_five_right_answers_are_as_good_as_all_for_recall_5() -> None:
    gold = [[letter] for letter in "bcdefghij"]
    found = list_figures("b, c, d, e, f, x", gold)
    assert (found["list_recall"], found["list_recall_5"]) == pytest.approx((5 / 9, 1.0))
    assert found["list_f1_5"] == pytest.approx(2 * (5 / 6) / (5 / 6 + 1))
    assert list_figures("", gold)["list_f1"] == 0.0
    assert listed("a, the, , x.,") == ("x",)


def test_list_metrics_have_a_figure_each() -> None:
    item = Item("q", "which?", True, answer_sets=(("x",), ("y",)))
    found = {name: METRICS[name].part(item, Output("x, z")) for name in LISTS}
    assert found == {
        "list_f1_5": (0.5, 1.0),
        "list_precision": (0.5, 1.0),
        "list_recall": (0.5, 1.0),
        "list_recall_5": (0.5, 1.0),
        "list_f1": (0.5, 1.0),
        "list_length": (2.0, 1.0),
    }
    assert METRICS[LISTS[0]].part(item, None) == (0.0, 1.0)
    assert METRICS[LISTS[-1]].part(item, None) is None


texts = st.text(alphabet="abcXYZ ,.?[]01\u00e9\n", max_size=30)


@given(texts, st.lists(st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=4))
def test_figures_are_shares_whatever_is_written(text: str, sets: list[list[str]]) -> None:
    figures = list_figures(text, sets)
    for value in (answer_recall(text, sets), answer_recall_words(text, sets), str_em(text, sets), figures["list_f1"]):
        assert 0.0 <= value <= 1.0
    assert figures["list_recall"] <= figures["list_recall_5"] <= 1.0
    assert harmonic(0.0, 0.0) == 0.0
