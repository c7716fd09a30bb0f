"""`selfrag eval run` as a person uses it: files and published tasks in, runs and a table out, and again for free."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from selfrag.cli.main import main
from selfrag.evaluation.records import items_of
from selfrag.jsonl import write_jsonl

PASSAGE = {"id": "p1", "title": "Book", "text": "Ann wrote it."}
USER = [
    {"id": f"u{i}", "task": "short_qa", "instruction": f"Who {i}?", "answers": ["Ann"], "passages": [PASSAGE]}
    for i in range(3)
]
ASQA = [
    {
        **{"sample_id": f"a{i}", "question": f"Who wrote book {i}?", "answer": "Ann wrote it."},
        "qa_pairs": [{"question": "Who?", "short_answers": ["Ann", "A."]}],
        "docs": [{"id": "d1", "title": "Book", "text": "Ann wrote it."}, {"id": "d2", "title": "", "text": "Or Bo."}],
    }
    for i in range(2)
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    write_jsonl(path, rows)
    return path


def manifest(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.engine
def test_files_and_published_tasks_in_one_run(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    files = [str(write(tmp_path / "own.jsonl", USER)), f"asqa/official={write(tmp_path / 'any name.json', ASQA)}"]
    out = tmp_path / "runs"
    options = [f"--model={tiny_llama}", "--engine=transformers", f"--out={out}", "--set=segment_tokens=12"]
    command = ["eval", "run", *files, *options, "--system=selfrag", "--system=selfrag-never", "--against=selfrag"]
    assert main(command) == 0
    shown = capsys.readouterr()
    for heading in ("own (short, 3 items)", "asqa (long, 2 items)"):
        assert heading in shown.out
    assert not re.search(r"\bnan\b", shown.out)
    said = manifest(out / "selfrag")
    assert said["identity"]["system"]["decoding"]["accumulate"] == "mean"
    published = said["files"]["asqa"]["settings"]
    assert published["task"]["preset"] == "asqa/official"
    decoding = published["system"]["decoding"]
    assert (decoding["mode"], decoding["accumulate"], decoding["segment_tokens"]) == ("always", "product", 12)
    assert "system" not in said["files"]["own"]["settings"]
    never = manifest(out / "selfrag-never")["files"]["asqa"]["settings"]["system"]["decoding"]
    assert (never["mode"], never["accumulate"]) == ("never", "product")  # the mode is in its name
    assert [item.query for item in items_of(out / "selfrag", "asqa").values()] == [row["question"] for row in ASQA]

    before = (out / "selfrag" / "asqa.log.jsonl").read_bytes()
    assert main(command) == 0  # nothing is answered again
    assert capsys.readouterr().out == shown.out
    assert (out / "selfrag" / "asqa.log.jsonl").read_bytes() == before
    assert main([*command, "--set=beam=1"]) == 2
    assert "holds a run with another system" in capsys.readouterr().err


def test_issue_19_a_metric_without_its_package_is_said_before_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)  # as where it is not installed
    file = write(tmp_path / "asqa.json", ASQA)
    assert main(["eval", "run", f"asqa={file}", "--model", str(tmp_path / "none"), "-o", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert "rouge_score.rouge_scorer is not installed; run: " in said
    assert "eval" in said
