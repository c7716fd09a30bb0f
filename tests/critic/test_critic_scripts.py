"""The scripts of the critic and of D_gen on small data: each runs, and what is wrong with its input is one line."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from critic.cases import read_labelled
from selfrag.jsonl import write_jsonl

SCRIPTS = Path(__file__).parents[2] / "scripts"
CASE = {
    "id": "c1",
    "dataset": "made",
    "group": "IsSup",
    "instruction": "Tell me about Oslo.",
    "preceding": "",
    "output": "Oslo is in Norway.",
    "evidence": {"title": "Oslo", "text": "Oslo is the capital of Norway."},
    "label": "Fully supported",
    "label_source": "human",
    "rule": "made",
}
CLAIM = {
    "id": "p1",
    "dataset": "made",
    "kind": "fact_check",
    "instruction": "Is the following statement correct or not?\n\n## Input:\n\nThe Rhine flows through Basel.",
    "output": "true",
    "gold_passages": [{"title": "Rhine", "text": "Basel lies on the Rhine."}],
}


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
    return module.main()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_jsonl(folder / "train" / "critic.jsonl", [CASE, {**CASE, "id": "c2", "label": "Partially supported"}])
    write_jsonl(folder / "dev" / "critic.jsonl", [{**CASE, "id": "d1", "output": "Bergen rains."}])
    write_jsonl(folder / "train" / "pairs.jsonl", [CLAIM])
    write_jsonl(folder / "intrinsics" / "hallucination_train.jsonl", [])
    return folder


def test_rows_of_neighbouring_annotations_are_added(data: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "rows.jsonl"
    assert run("make_critic_rows", monkeypatch, "--data", data, "--out", out) == 0
    assert capsys.readouterr().out.startswith("3 rows, 1 of them added; left out: {}")
    assert [row.id for row in read_labelled(out)] == ["c1", "c2", "pairs/p1"]
    write_jsonl(data / "train" / "pairs.jsonl", [{**CLAIM, "gold_passages": 7}])
    assert run("make_critic_rows", monkeypatch, "--data", data, "--out", out) == 2
    assert "pairs.jsonl:1: 'gold_passages' must be a list of objects, not 7" in capsys.readouterr().err


def test_d_gen_is_priced_with_the_settings_of_the_script(data: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "out" / "index").mkdir(parents=True)
    arguments = ("--data", data, "--critic", "lexical", "--out", tmp_path / "out", "--", "--dry-run")
    assert run("make_dgen", monkeypatch, *arguments) == 0
    # Retrieve and IsUse; IsRel and IsSup of the gold passage, which joins, and of five that are searched.
    assert capsys.readouterr().out == "1 of 1 rows with 1 sentences; at most 14 judgments and 1 searches\n"
    shutil.rmtree(data / "train")
    assert run("make_dgen", monkeypatch, *arguments) == 2
    assert "no pairs at" in capsys.readouterr().err


def test_baselines_are_measured_without_a_model(data: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "figures.json"
    arguments = ("--rows", data / "dev" / "critic.jsonl", "--train", data, "--out", out)
    assert run("eval_critic", monkeypatch, *arguments) == 0
    assert "## Accuracy, all rows" in capsys.readouterr().out
    assert json.loads(out.read_text())["critics"].keys() == {"tf-idf + logistic regression", "majority label"}
    assert run("eval_critic", monkeypatch, "--rows", data / "dev" / "critic.jsonl") == 2
    assert capsys.readouterr().err == "nothing to evaluate: give a critic, a generator, a base model or training rows\n"
