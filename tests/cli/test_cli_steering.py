"""`selfrag eval run`, `sweep` and `ablate` as a person runs them: a real engine, a tiny model, files in, pages out."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from selfrag.cli.main import main
from selfrag.common.jsonl import write_jsonl
from selfrag.evaluation.records import items_of
from selfrag.evaluation.runner import Model
from selfrag.experiments.ablations import PUBLISHED

PASSAGES = [
    {"id": f"p{i}", "title": "Book", "text": f"Text {i} by Ann."} for i in range(3)
]
SHORT = {
    "task": "short_qa",
    "answers": ["Ann", "a"],
    "passages": PASSAGES,
    "gold_passage_ids": ["p1"],
}
CLOSED = {
    "task": "fact_verification",
    "answers": ["true"],
    "label": "true",
    "options": ["true", "false"],
}
ASQA = {
    "answer": "Ann wrote it.",
    "qa_pairs": [{"question": "Who?", "short_answers": ["Ann", "A."]}],
    "docs": [
        {"id": "d1", "title": "Book", "text": "Ann wrote it."},
        {"id": "d2", "title": "", "text": "Or Bo."},
    ],
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Short questions, claims, and rows of ASQA."""
    short = (
        {"id": f"q{i}", "instruction": f"Who wrote book {i}?", **SHORT}
        for i in range(6)
    )
    write_jsonl(tmp_path / "short.jsonl", short)
    claims = (f"Is it so?\n\n## Input:\n\nClaim {i}" for i in range(4))
    closed = {**CLOSED, "passages": PASSAGES[:2]}
    write_jsonl(
        tmp_path / "closed.jsonl",
        ({"id": one[-1], "instruction": one, **closed} for one in claims),
    )
    asked = (
        {"sample_id": f"a{i}", "question": f"Who wrote book {i}?", **ASQA}
        for i in range(2)
    )
    write_jsonl(tmp_path / "any name.json", asked)
    return [
        str(tmp_path / name)
        for name in ("short.jsonl", "closed.jsonl", "any name.json")
    ]


def values(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.engine
def test_files_and_published_tasks_in_one_run(
    tiny_llama: Path,
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    out = tmp_path / "runs"
    options = [
        f"--model={tiny_llama}",
        "--engine=transformers",
        f"--out={out}",
        "--set=segment_tokens=12",
    ]
    options += ["--system=selfrag", "--system=selfrag-never", "--against=selfrag"]
    command = ["eval", "run", files[0], f"asqa/official={files[2]}", *options]
    assert main(command) == 0
    shown = capsys.readouterr()
    for heading in ("short (short, 6 items)", "asqa (long, 2 items)"):
        assert heading in shown.out
    assert not re.search(r"\bnan\b", shown.out)
    said = values(out / "selfrag" / "manifest.json")
    assert said["identity"]["system"]["decoding"]["accumulate"] == "mean"
    published = said["files"]["asqa"]["settings"]
    assert published["task"]["preset"] == "asqa/official"
    decoding = published["system"]["decoding"]
    assert (decoding["mode"], decoding["accumulate"], decoding["segment_tokens"]) == (
        "always",
        "product",
        12,
    )
    assert "system" not in said["files"]["short"]["settings"]
    never = values(out / "selfrag-never" / "manifest.json")["files"]["asqa"][
        "settings"
    ]["system"]["decoding"]
    assert (never["mode"], never["accumulate"]) == (
        "never",
        "product",
    )  # the mode is in its name
    asked = [item.query for item in items_of(out / "selfrag", "asqa").values()]
    assert asked == [f"Who wrote book {i}?" for i in range(2)]

    before = (out / "selfrag" / "asqa.log.jsonl").read_bytes()
    assert main(command) == 0  # nothing is answered again
    assert capsys.readouterr().out == shown.out
    assert (out / "selfrag" / "asqa.log.jsonl").read_bytes() == before
    assert main([*command, "--set=beam=1"]) == 2
    assert "holds a run with other system" in capsys.readouterr().err


def test_issue_19_a_metric_without_its_package_is_said_before_the_model(
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        sys.modules, "rouge_score.rouge_scorer", None
    )  # as where it is not installed
    assert (
        main(
            [
                "eval",
                "run",
                f"asqa={files[2]}",
                "--model",
                str(tmp_path / "none"),
                f"-o={tmp_path / 'runs'}",
            ]
        )
        == 2
    )
    assert re.search(
        r"rouge_score.rouge_scorer is not installed; run: .*eval",
        capsys.readouterr().err,
    )


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
    model = [
        f"--out={out}",
        f"--model={tiny_llama}",
        "--engine=transformers",
        "--set=passages=2",
    ]
    options = ["--axis=threshold=0,0.5,1", "--best=headline,retrieval_rate<=0.5"]
    assert main(["sweep", *files[:2], *model, *options]) == 0
    shown = capsys.readouterr().out
    assert "4 settings, 40 answers: 40 replayed" in shown  # 4 settings, 10 items
    assert "goal contains,retrieval_rate<=0.5: " in shown
    page = (out / "sweep.md").read_text()
    for said in (
        *(
            "base policy weights isrel=1,issup=1,isuse=0.5, passages=2.",
            "40 answers: 40 replayed",
            "| threshold=1 |",
        ),
        *(
            "goal contains,retrieval_rate<=0.5: ",
            "![short-threshold](plots/short-threshold.svg)",
        ),
    ):
        assert said in page
    for name in ("short-threshold.svg", "closed-threshold.png"):
        assert (out / "plots" / name).is_file()
    rows = {
        row["system"]: row
        for row in csv.DictReader((out / "sweep.csv").read_text().splitlines())
    }
    assert set(rows) == {"base", "threshold=0", "threshold=0.5", "threshold=1"}
    found = values(out / "sweep.json")
    assert {"commit", "versions", "time", "choices", "saved", "settings"} <= set(found)
    assert found["choices"]["closed"]["goal"] == "accuracy,retrieval_rate<=0.5"
    assert found["saved"]["answers"] == {"replayed": 40, "decoded": 0}
    assert found["files"]["short"]["items"] == 6
    assert found["settings"]["closed"]["threshold=1"]["threshold"] == 1
    assert found["series"]["short"]["threshold"] == [
        [at, f"threshold={at:g}"] for at in (0, 0.5, 1)
    ]
    manifest = values(out / "settings" / "threshold=1" / "manifest.json")
    assert manifest["identity"]["system"]["decoding"]["threshold"] == 1

    def load(self: Model, path: Path) -> Any:
        raise AssertionError("everything is recorded")

    monkeypatch.setattr(Model, "load", load)
    assert (
        main(
            [
                "sweep",
                files[1],
                *model,
                "--axis=threshold=0,1",
                "--axis=isrel=0,2",
                "--best=none",
            ]
        )
        == 0
    )
    assert "20 replayed" in capsys.readouterr().out


@pytest.mark.engine
def test_an_ablation_prints_the_published_rows_beside_ours(
    tiny_llama: Path,
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "study"
    command = [
        "ablate",
        *files[:2],
        f"--out={out}",
        f"--model={tiny_llama}",
        "--engine=transformers",
    ]
    command += ["--set=passages=2", "--limit=3"]
    assert main([*command, "--no-critic=/nowhere"]) == 2
    assert not out.exists()
    assert (
        main([*command, f"--no-retriever={tiny_llama}", f"--no-critic={tiny_llama}"])
        == 0
    )
    shown = capsys.readouterr().out
    assert re.search(
        r"^no-critic, short, \N{EN DASH}, .*, \N{EN DASH}$", shown, re.M
    )  # no file of the paper
    assert "right answers that no passage holds" in shown
    assert re.search(r"^no-retrieval, short, \d of 3, .*, \N{EN DASH}$", shown, re.M)
    page = (out / "ablation.md").read_text()
    assert (
        f"Model {tiny_llama.name}, base policy weights" in page
    )  # no folder of this machine on a page
    for name in (*PUBLISHED, "official", "always", "forbid-unsupported"):
        assert f"| {name} |" in page
    for said in (
        "| no-retrieval | 24.7 (-20.8) | 73.0 (-0.5) | \N{EN DASH} |",
        "- no-retrieval: weights isrel=1,issup=1,isuse=0.5, mode=never, passages=2\n",
        "smaller the surer",
    ):
        assert said in page
    rows = [
        json.loads(line)
        for line in (out / "rows" / "no-retrieval" / "short.jsonl")
        .read_text()
        .splitlines()
    ]
    assert [row["read"] for row in rows] == [[], [], []]
    found = values(out / "ablation.json")
    assert found["settings"]["short"]["official"]["retrieve_test"] == "log_ratio"
    assert main([*command, f"--baseline={out / 'rows' / 'always'}"]) == 2
    assert "two systems called 'always'" in capsys.readouterr().err
    assert main([*command, "--limit=2"]) == 2
    assert "holds a run with other" in capsys.readouterr().err
