"""The demo model's fourth stage: which rows of a critic it learns from, and which annotated ones it sees again."""

from __future__ import annotations

import json

import pytest

from demo_rows.distilled import Remembered, grounded, make, mix
from demo_rows.mixture import STAGES, set_aside
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.training.rows import Evidence, Row, Text, Token, read_rows, write_rows

PASSAGE = Evidence(Passage("w1", "Chess is a game.", "Chess"))


def row(name: str, *tokens: str, instruction: str = "What is chess?") -> Row:
    parts = [part for token in tokens for part in (Token(token), *([PASSAGE] if token == "[Retrieval]" else []))]
    return Row(name, "pairs/short_qa", instruction, (*parts, Text("A game.")))


SUPPORTED = row("a", "[Retrieval]", "[Relevant]", "[Fully supported]")
PARTLY = row("b", "[Retrieval]", "[Relevant]", "[Partially supported]")
ALONE = row("c", "[No Retrieval]")
CONTRADICTED = row("d", "[Retrieval]", "[Relevant]", "[No support / Contradictory]")
IRRELEVANT = row("e", "[Retrieval]", "[Irrelevant]")
LATER = row("f", "[Retrieval]", "[Relevant]", "[Fully supported]", "[Retrieval]", "[Irrelevant]")


def test_rows_that_leave_their_passage_are_left_out() -> None:
    assert [grounded(one) for one in (SUPPORTED, PARTLY, ALONE)] == [True] * 3
    assert [grounded(one) for one in (CONTRADICTED, IRRELEVANT, LATER)] == [False] * 3


def test_the_mixture_by_hand() -> None:
    annotated = [row(f"demo-{i}", "[Retrieval]", "[Irrelevant]") for i in range(5)]
    found = mix([SUPPORTED, IRRELEVANT, ALONE], annotated, Remembered(annotated=2))
    assert {one.id for one in found if not one.id.startswith("demo")} == {"a", "c"}
    assert len([one for one in found if one.id.startswith("demo")]) == 2  # irrelevant passages included: they abstain
    assert found == mix([SUPPORTED, IRRELEVANT, ALONE], annotated, Remembered(annotated=2))
    assert len(mix([SUPPORTED], annotated, Remembered(annotated=9))) == 6


def test_what_calibrates_the_model_is_not_learned() -> None:
    held = next(text for text in (f"Question {i}?" for i in range(1000)) if set_aside(text, STAGES[-1]))
    assert mix([row("x", "[No Retrieval]", instruction=held)], [], Remembered()) == ()


def test_the_folder_of_the_stage(tmp_path) -> None:
    write_rows(tmp_path / "dgen" / "rows.jsonl", [SUPPORTED, IRRELEVANT])
    write_rows(tmp_path / "3" / "rows.jsonl", [row("demo-1", "[No Retrieval]")])
    make(tmp_path / "dgen", tmp_path / "3", tmp_path / "4", Remembered())
    assert {one.id for one in read_rows(tmp_path / "4" / "rows.jsonl")} == {"a", "demo-1"}
    manifest = json.loads((tmp_path / "4" / "manifest.json").read_text())
    assert manifest["written_by_critic"] == {"rows": 2, "taken": 1}
    assert manifest["train"]["rows"] == 2


def test_bad_folders_are_named(tmp_path) -> None:
    with pytest.raises(UserError, match="dgen"):
        make(tmp_path / "dgen", tmp_path / "3", tmp_path / "4", Remembered())
    write_rows(tmp_path / "dgen" / "rows.jsonl", [IRRELEVANT])
    write_rows(tmp_path / "3" / "rows.jsonl", [SUPPORTED])
    with pytest.raises(UserError, match="every row has an irrelevant"):
        make(tmp_path / "dgen", tmp_path / "3", tmp_path / "4", Remembered())
    assert not (tmp_path / "4").exists()
