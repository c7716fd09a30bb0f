"""`selfrag sweep` and `selfrag ablate` as a person runs them: a real engine, a tiny model, files in, pages out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from selfrag.cli.main import main
from selfrag.evaluation.runner import Model
from selfrag.experiments.ablations import PUBLISHED
from selfrag.jsonl import write_jsonl

PASSAGES = [{"id": f"p{i}", "title": "Book", "text": f"Text {i} by Ann."} for i in range(3)]
SHORT = {"task": "short_qa", "answers": ["Ann", "a"], "passages": PASSAGES, "gold_passage_ids": ["p1"]}
CLOSED = {"task": "fact_verification", "answers": ["true"], "label": "true", "options": ["true", "false"]}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    short = ({"id": f"q{i}", "instruction": f"Who wrote book {i}?", **SHORT} for i in range(6))
    write_jsonl(tmp_path / "short.jsonl", short)
    claims = (f"Is it so?\n\n## Input:\n\nClaim {i}" for i in range(4))
    closed = {**CLOSED, "passages": PASSAGES[:2]}
    write_jsonl(tmp_path / "closed.jsonl", ({"id": one[-1], "instruction": one, **closed} for one in claims))
    return [str(tmp_path / "short.jsonl"), str(tmp_path / "closed.jsonl")]


def values(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.engine
def test_a_sweep_decodes_once_and_goes_on_without_the_model(
    tiny_llama: Path,
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    out = tmp_path / "study"
    model = [f"--out={out}", f"--model={tiny_llama}", "--engine=transformers", "--set=passages=2"]
    options = ["--axis=threshold=0,0.5,1", "--best=headline,retrieval_rate<=0.5", "--answers"]
    assert main(["sweep", *files, *model, *options]) == 0
    shown = capsys.readouterr().out
    assert "4 settings, 40 answers: 40 replayed" in shown  # 4 settings, 10 items
    assert "goal contains,retrieval_rate<=0.5: " in shown
    page = (out / "sweep.md").read_text()
    assert "| threshold=1 |" in page
    for name in ("short-threshold.svg", "closed-threshold.png"):
        assert (out / "plots" / name).is_file()
    found = values(out / "sweep.json")
    assert found["choices"]["closed"]["goal"] == "accuracy,retrieval_rate<=0.5"
    assert found["saved"]["answers"] == {"replayed": 40, "decoded": 0, "approximate": 0}
    assert found["files"]["short"]["items"] == 6
    manifest = values(out / "settings" / "threshold=1" / "manifest.json")
    assert manifest["identity"]["system"]["decoding"]["threshold"] == 1

    def load(self: Model, path: Path) -> Any:
        raise AssertionError("everything is recorded")

    monkeypatch.setattr(Model, "load", load)
    assert main(["sweep", files[1], *model, "--axis=threshold=0,1", "--axis=isrel=0,2", "--best=none"]) == 0
    assert "20 replayed" in capsys.readouterr().out


@pytest.mark.engine
def test_an_ablation_prints_the_published_rows_beside_ours(
    tiny_llama: Path, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    command = ["ablate", *files, f"--out={out}", f"--model={tiny_llama}", "--engine=transformers", "--set=passages=2"]
    trained = [f"--no-retriever={tiny_llama}", f"--no-critic={tiny_llama}"]
    assert main([*command, "--limit=3", "--no-critic=/nowhere"]) == 2
    assert not out.exists()
    assert main([*command, "--limit=3", *trained]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^no-critic, short, \N{EN DASH}, .*-2\.9, -1\.5, -14\.0$", shown, re.M)
    assert "right answers that no passage holds" in shown
    assert re.search(r"^no-retrieval, short, \d of 3, .*-20\.8, -0\.5$", shown, re.M)
    page = (out / "ablation.md").read_text()
    for name in (*PUBLISHED, "official", "always", "forbid-unsupported"):
        assert f"| {name} |" in page
    assert "| no-retrieval | 24.7 (-20.8) | 73.0 (-0.5) | \N{EN DASH} |" in page
    rows = [json.loads(line) for line in (out / "rows" / "no-retrieval" / "short.jsonl").read_text().splitlines()]
    assert [row["read"] for row in rows] == [[], [], []]
    found = values(out / "ablation.json")
    assert found["saved"]["answers"]["approximate"] == 0
    assert found["settings"]["short"]["official"]["retrieve_test"] == "log_ratio"
    assert main([*command, "--limit=3", f"--baseline={out / 'rows' / 'always'}"]) == 2
    assert "two systems called 'always'" in capsys.readouterr().err
    assert main([*command, "--limit=2"]) == 2
    assert "holds a run with another" in capsys.readouterr().err
