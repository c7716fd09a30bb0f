"""The comparison as a person runs it: real engines on tiny random models, files in, tables out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from selfrag.evaluation.systems import ROLES

PASSAGES = [{"id": f"p{i}", "title": "Book", "text": f"Text {i} by Ann."} for i in range(6)]
SHORT = {"task": "short_qa", "instruction": "Who wrote it?", "answers": ["Ann"], "passages": PASSAGES}
CLOSED = {"task": "multiple_choice", "instruction": "Choose.\n\n## Input:\n\nWhich?\nA: x\nB: y", "answers": ["B"]}
ROWS = {"short": SHORT | {"gold_passage_ids": ["p1"]}, "closed": CLOSED | {"label": "B", "options": ["x", "y"]}}


@pytest.mark.engine
def test_all_systems_on_two_kinds_of_files(tiny_llama: Path, tiny_llama_plain: Path, tmp_path: Path, run_script):
    files, out = [tmp_path / f"{name}.jsonl" for name in ROWS], tmp_path / "runs"
    for path in files:
        path.write_text("".join(json.dumps({"id": f"q{i}", **ROWS[path.stem]}) + "\n" for i in range(2)))
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
    code, _, error = run_script("compare_systems", *again)
    assert code == 0, error
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
