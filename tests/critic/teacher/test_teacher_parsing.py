"""What a teacher's words say: a label of the set, or nothing."""

from __future__ import annotations

import re

import pytest

from critic.cases import GROUPS
from critic.teacher.forms import OWN
from critic.teacher.prompts import read_label

RELEVANCE = {"[Relevant]": "Relevant", "[Irrelevant]": "Irrelevant"}
SUPPORT = {f"[{name}]": name for name in GROUPS["IsSup"].names}
GRADES = {str(grade): str(grade) for grade in range(1, 6)}


@pytest.mark.parametrize(
    ("text", "surfaces", "label"),
    [
        ("[Relevant]", RELEVANCE, "Relevant"),
        ("Relevant", RELEVANCE, "Relevant"),
        ("Rating: [Relevant]", RELEVANCE, "Relevant"),
        ("**[Relevant]**\nExplanation: it is not [Irrelevant].", RELEVANCE, "Relevant"),
        ("[Relevant] The evidence does not say more.", RELEVANCE, "Relevant"),
        ("<think>\nIs it [Irrelevant]? 3 times no.\n</think>\n\n[Relevant]", RELEVANCE, "Relevant"),
        ('{"label": "[Relevant]"}', RELEVANCE, "Relevant"),
        ("[No support / Contradictory]", SUPPORT, "No support / Contradictory"),
        ("4", GRADES, "4"),
        ("Perceived utility: 4\nExplanation: 5 would be too much", GRADES, "4"),
    ],
)
def test_a_label_is_read(text, surfaces, label) -> None:
    assert read_label(text, surfaces) == (label, "")


@pytest.mark.parametrize(
    ("text", "surfaces", "reason"),
    [
        ("", RELEVANCE, "empty"),
        ("<think>[Relevant] without an end", RELEVANCE, "without an end"),
        ("relevant", RELEVANCE, "0 labels"),
        ("[Somewhat relevant]", RELEVANCE, "0 labels"),
        ("[Relevant] or [Irrelevant]", RELEVANCE, "2 labels"),
        ("This is not [Relevant]", RELEVANCE, "negates"),
        ("It isn\u2019t [Relevant]", RELEVANCE, "negates"),
        ("Well,\n[Relevant]", RELEVANCE, "0 labels"),
        ("x" * 3000 + "[Relevant]", RELEVANCE, "too long"),
        ('{"label": "[Relevant]", "label": "[Irrelevant]"}', RELEVANCE, "twice"),
        ('{"label": ["[Relevant]"]}', RELEVANCE, "object"),
        ('{"a": ' * 100_000, RELEVANCE, "no JSON"),
        ("6", GRADES, "off the scale"),
        ("-4", GRADES, "off the scale"),
        ("4 or 5", GRADES, "2 numbers"),
        ("four", GRADES, "0 numbers"),
        ("\u0664", GRADES, "."),
    ],
)
def test_what_is_no_label_stays_without_one(text, surfaces, reason) -> None:
    label, why = read_label(text, surfaces)
    assert label is None
    assert re.search(reason, why)


def test_defect_36_an_unknown_label_is_not_no_retrieval() -> None:
    """Official code: what is not understood becomes `[No Retrieval]`."""
    for form in OWN.forms.values():
        assert read_label("I would have to think about it.", form.surfaces)[0] is None
        assert read_label("", form.surfaces)[0] is None
