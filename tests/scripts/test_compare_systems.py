"""Comparisons as a person runs them: of systems, of policies, of data sizes. Real engines on tiny random models."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import study_data_size
from eval_joining import VARIANTS, Joining
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.evaluation.systems import ROLES
from selfrag.intrinsics.catalog import find
from selfrag.training.rows import Row, Text, Token

PASSAGES = [{"id": f"p{i}", "title": "Book", "text": f"Text {i} by Ann."} for i in range(6)]
SHORT = {"task": "short_qa", "instruction": "Who wrote it?", "answers": ["Ann"], "passages": PASSAGES}
CLOSED = {"task": "multiple_choice", "instruction": "Choose.\n\n## Input:\n\nWhich?\nA: x\nB: y", "answers": ["B"]}
ROWS = {"short": SHORT | {"gold_passage_ids": ["p1"]}, "closed": CLOSED | {"label": "B", "options": ["x", "y"]}}


def written(folder: Path, name: str) -> Path:
    """A file with two rows."""
    write_jsonl(folder / f"{name}.jsonl", [{"id": f"q{i}", **ROWS[name]} for i in range(2)])
    return folder / f"{name}.jsonl"


@pytest.mark.engine
def test_all_systems_on_two_kinds_of_files(tiny_llama: Path, tiny_llama_plain: Path, tmp_path: Path, run_script):
    files, out = [written(tmp_path, name) for name in ROWS], tmp_path / "runs"
    trained = [f"--{role}={tiny_llama}" for role in ("finetuned", "sail", "selfrag")]
    words = ["all", f"--base={tiny_llama_plain}", *trained, "--engine=transformers", f"--out={out}"]
    code, _, error = run_script("compare_systems", *words, *files)
    assert code == 0, error
    table = (out / "comparison.md").read_text()
    for heading in ("Average over 2 files", "short (short, 2 items)", "closed (closed, 2 items)"):
        assert f"### {heading}" in table
    assert "2 of 2 items came without passages" in table
    assert not re.search(r"\bnan\b", table)
    read = {}
    for name in ROLES:
        assert table.count(f"| {name} | ") == 3
        records = [json.loads(line) for line in (out / name / "short.jsonl").read_text().splitlines()]
        assert [record["error"] for record in records] == [None] * 2
        read[name] = records[0]["read"]
    assert (read["base"], read["rag-1"], read["finetuned"], read["sail"]) == ([], ["p0"], [], ["p0"])
    assert read["rag-5"] == read["selfrag-always"] == ["p0", "p1", "p2", "p3", "p4"]
    again = ["table", *(out / name for name in ROLES), "--against=selfrag-adaptive", f"--out={tmp_path / 'again'}"]
    assert run_script("compare_systems", *again)[0] == 0
    assert (tmp_path / "again.md").read_text() == table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all", "--out=x", "f.jsonl"], "no model given; give at least one of --base, --finetuned"),
        (["run", "--model=/nowhere", "--system=rag-1", "--out=x", "f.jsonl"], "f.jsonl: cannot be read"),
        (["table", "x"], "x holds no run: manifest.json is missing"),
    ],
)
def test_bad_command_lines_are_one_line(arguments, message, tmp_path, monkeypatch, run_script) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = run_script("compare_systems", *arguments)
    assert code == 2
    assert message in error


def test_every_variant_of_the_beam_is_a_policy_on_intrinsics_that_there_are() -> None:
    joining = Joining("demo")
    assert joining.policy("tokens") == joining.decoding
    for name in VARIANTS:
        policy = joining.policy(name)
        assert (name == "tokens") == (not policy.reflectors and not policy.gates)
    assert [find(name).name for name in joining.intrinsics] == list(joining.intrinsics)
    with pytest.raises(UserError, match="unknown variant 'tokes'; known: tokens, hallucination-joins"):
        Joining("demo", ("tokes",))


ANSWERS = [
    Row(f"r{i}", "facts/short_qa", f"Who wrote book {i}?", (Token("[No Retrieval]"), Text("Ann"), Token("[Utility:5]")))
    for i in range(8)
]


@given(small=st.integers(1, 8), large=st.integers(1, 8), seed=st.integers(0, 9))
def test_a_share_of_the_data_holds_every_smaller_one(small, large, seed):
    small, large = sorted((small, large))
    few, many = (study_data_size.nested(ANSWERS, count, seed) for count in (small, large))
    assert many[: len(few)] == few
    assert len(few) == small
    assert sorted(row.id for row in study_data_size.nested(ANSWERS, 8, seed)) == [row.id for row in ANSWERS]
    assert study_data_size.plain(ANSWERS[0]) == replace(ANSWERS[0], target=(Text("Ann"),))
