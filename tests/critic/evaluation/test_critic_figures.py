"""Figures against values worked out by hand."""

import math

import pytest

from critic.cases import Case, Labelled
from critic.evaluation import figures
from retrieval.passage import Passage
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP

CASE = Case("IsRel", "Q?", evidence=Passage("p", "text"))


def row(label, case=CASE, number=0, source="human", dataset="d"):
    return Labelled(f"{label}{number}", case, label, dataset, source, "r")


def judged(*distribution, labels=ISREL, coverage=1.0):
    return Judgment(labels, "case", distribution, coverage)


ROWS = [row("Relevant", number=0), row("Relevant", number=1), row("Irrelevant", number=2), row("Irrelevant", number=3)]
JUDGMENTS = [judged(0.9, 0.1), judged(0.4, 0.6), judged(0.2, 0.8), judged(0.3, 0.7)]


def test_four_cases_by_hand():
    found = figures(ROWS, JUDGMENTS)
    assert found.accuracy.value == 0.75
    # Relevant: precision 1, recall 1/2, F1 2/3. Irrelevant: precision 2/3, recall 1, F1 4/5.
    assert found.macro_f1.value == pytest.approx((2 / 3 + 4 / 5) / 2)
    # 2(0.1^2), 2(0.6^2), 2(0.2^2), 2(0.3^2), over 4
    assert found.brier.value == pytest.approx((0.02 + 0.72 + 0.08 + 0.18) / 4)
    # each in a bin of its own: |0.9-1| + |0.6-0| + |0.8-1| + |0.7-1|, over 4
    assert found.ece.value == pytest.approx((0.1 + 0.6 + 0.2 + 0.3) / 4)
    assert found.confusion == ((1, 1, 0), (0, 2, 0))
    assert found.undefined == 0
    assert found.accuracy.low < 0.75 < found.accuracy.high


def test_a_case_without_a_judgment_is_wrong_and_has_no_calibration():
    found = figures(ROWS, [*JUDGMENTS[:3], None])
    assert found.accuracy.value == 0.5
    assert found.undefined == 1
    assert found.confusion == ((1, 1, 0), (0, 1, 1))
    assert found.brier.n == 3
    nothing = figures(ROWS, [None] * 4)
    assert nothing.accuracy.value == 0
    assert math.isnan(nothing.ece.value)
    assert nothing.as_dict()["brier"]["value"] is None


def test_a_label_that_gold_lacks_is_no_part_of_macro_f1():
    case = Case("IsSup", "Q?", "", "y", Passage("p", "text"))
    rows = [row("Fully supported", case, 0), row("Partially supported", case, 1)]
    right = [judged(0.8, 0.1, 0.1, labels=ISSUP), judged(0.1, 0.8, 0.1, labels=ISSUP)]
    assert figures(rows, right).macro_f1.value == 1.0
