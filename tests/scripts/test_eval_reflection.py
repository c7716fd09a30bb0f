"""The evaluation as a person runs it: a real engine on a tiny random model, files in, figures and report out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from reflection_quality import evaluate
from retrieval.errors import UserError

ROWS = [
    {
        "id": f"q{i}",
        "task": "short_qa",
        "instruction": f"Who wrote book {i}?",
        "answers": ["Ann"],
        "passages": [{"id": f"p{j}", "title": "Book", "text": f"Text {i} {j} by Ann."} for j in range(3)],
        "gold_passage_ids": ["p1"],
    }
    for i in range(3)
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.engine
def test_a_run_gives_figures_and_a_report_that_names_its_sources(tiny_llama: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "report.json"
    found = evaluate(str(tiny_llama), [rows], engine="transformers", limit=2, seed=5, out=out)
    assert {"retrieves_questions", "contains_best_of_five", "contains_gold_passage"} <= set(found[str(rows)])
    assert found[str(rows)]["retrieves_questions"].n == 2
    report = json.loads(out.read_text())
    assert report["figures"][str(rows)]["retrieves_questions"]["n"] == 2
    assert [len(item["candidates"]) for item in report["items"][str(rows)]] == [3, 3]
    assert report["manifest"]["data"][str(rows)] == hashlib.sha256(rows.read_bytes()).hexdigest()
    assert "model.safetensors" in report["manifest"]["model_files"]
    assert (report["settings"]["seed"], report["settings"]["decoding"]["max_segments"]) == (5, 1)
    again = evaluate(str(tiny_llama), [rows], engine="transformers", limit=2, seed=5)
    assert again == found


def test_files_are_read_before_the_model_is_loaded(rows: Path, tmp_path: Path) -> None:
    rows.write_text(rows.read_text() + "{}\n")
    with pytest.raises(UserError, match=r"rows\.jsonl:4: "):
        evaluate(str(tmp_path / "no-model"), [rows])
    with pytest.raises(UserError, match="limit=0"):
        evaluate("no-model", [rows], limit=0)


def test_the_script_prints_one_line_and_exits_2_on_bad_input(tmp_path: Path, run_script) -> None:
    code, _, error = run_script("eval_reflection", "--model", "demo", tmp_path / "none.jsonl")
    assert (code, error.count("\n")) == (2, 1)
    assert "none.jsonl: cannot be read" in error
