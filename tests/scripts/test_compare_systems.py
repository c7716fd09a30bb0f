"""The comparison as a person runs it: real engines on tiny random models, files in, tables out, killed and resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from selfrag.evaluation.systems import ROLES

PASSAGES = [{"id": f"p{i}", "title": "Book", "text": f"Text {i} by Ann."} for i in range(6)]
SHORT = [
    {
        "id": f"q{i}",
        "task": "short_qa",
        "instruction": f"Who wrote book {i}?",
        "answers": ["Ann"],
        "passages": PASSAGES,
        "gold_passage_ids": ["p1"],
    }
    for i in range(3)
]
CLOSED = [
    {
        "id": f"c{i}",
        "task": "multiple_choice",
        "instruction": f"Choose.\n\n## Input:\n\nWhich is {i}?\nA: x\nB: y",
        "answers": ["B"],
        "label": "B",
        "options": ["x", "y"],
    }
    for i in range(3)
]
LONG = [
    {
        "id": f"l{i}",
        "task": "long_form",
        "instruction": "Why?",
        "answers": ["Because."] if i else [],
        "label": "answerable" if i else "unanswerable",
        "passages": PASSAGES[:1],
        "gold_passage_ids": ["p0"] if i else [],
    }
    for i in range(2)
]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.engine
def test_all_systems_on_three_kinds_of_files(
    tiny_llama: Path, tiny_llama_plain: Path, tmp_path: Path, run_script
) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    files = [write(tmp_path, "short", SHORT), write(tmp_path, "closed", CLOSED), write(tmp_path, "long", LONG)]
    out = tmp_path / "runs"
    trained = [f"--{role}={tiny_llama}" for role in ("finetuned", "sail", "selfrag")]
    arguments = ["all", f"--base={tiny_llama_plain}", *trained, "--engine=transformers", f"--out={out}", *files]
    arguments.append("--choices=texts")
    code, _, error = run_script("compare_systems", *arguments)
    assert code == 0, error
    table = (out / "comparison.md").read_text()
    for heading in (
        "Average over 3 files",
        "short (short, 3 items)",
        "closed (closed, 3 items)",
        "long (long, 2 items)",
    ):
        assert f"### {heading}" in table
    for name in ROLES:
        assert table.count(f"| {name} | ") == 4
        records = [json.loads(line) for line in (out / name / "short.jsonl").read_text().splitlines()]
        assert [record["id"] for record in records] == [row["id"] for row in SHORT]
        assert [record["error"] for record in records] == [None] * len(SHORT)
    assert "3 of 3 items came without passages" in table
    assert not re.search(r"\bnan\b", table)
    read = {name: json.loads((out / name / "short.jsonl").read_text().splitlines()[0])["read"] for name in ROLES}
    assert (read["base"], read["rag-1"], read["finetuned"], read["sail"]) == ([], ["p0"], [], ["p0"])
    assert read["rag-5"] == read["selfrag-always"] == ["p0", "p1", "p2", "p3", "p4"]
    code, _, error = run_script(
        "compare_systems",
        "table",
        *(str(out / name) for name in ROLES),
        "--against=selfrag-adaptive",
        f"--out={tmp_path / 'again'}",
    )
    assert code == 0, error
    assert (tmp_path / "again.md").read_text() == table
    (record,) = [json.loads(line) for line in (out / "rag-1" / "closed.jsonl").read_text().splitlines()][:1]
    assert record["text"] in ("x", "y")
    for name in ROLES:
        asked = json.loads((out / name / "manifest.json").read_text())["files"]
        assert [asked[file]["settings"].get("choices") for file in ("short", "closed", "long")] == [None, "texts", None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all", "--out=x", "f.jsonl"], "no model given; give at least one of --base, --finetuned"),
        (["run", "--model=/nowhere", "--system=rag-1", "--out=x", "f.jsonl"], "f.jsonl: cannot be read"),
        (["run", "--model=m", "--system=base", "--system=rag-1", "--name=n", "--out=x", "f"], "--name names one run"),
        (["run", "--model=m", "--systm=rag-1", "--out=x", "f"], "--systm"),
        (["table", "x"], "x holds no run: manifest.json is missing"),
    ],
)
def test_bad_command_lines_are_one_line(arguments, message, tmp_path, monkeypatch, run_script) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = run_script("compare_systems", *arguments)
    assert code == 2
    assert re.search(message, error)
