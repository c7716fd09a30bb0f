"""`critic augment`: the command as people type it, and what it says when something is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import small_run

from critic.cli.main import main
from selfrag.jsonl import write_jsonl
from selfrag.training.rows import read_rows


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pairs that all bring a passage, so that no index is needed."""
    path = tmp_path / "pairs.jsonl"
    write_jsonl(
        path,
        (
            {
                **{"id": f"p{n}", "dataset": "made\x1b[31m", "kind": "short_qa", "output": f"{place}ina"},
                "instruction": f"What is the river of {place}?",
                "gold_passages": [{"title": place, "text": f"The river of {place} is called {place}ina."}],
            }
            for n, place in enumerate(small_run.PLACES)
        ),
    )
    return path


def test_the_whole_command(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["augment", str(pairs), "--critic", "lexical", "-o", str(out), "--gold", "only", "--balance", "none"]
    assert main(arguments) == 0
    assert len(list(read_rows(out / "rows.jsonl"))) == 10
    shown = capsys.readouterr().out
    assert "10 rows of 10 pairs" in shown
    assert "[Fully supported]" in shown
    assert "\x1b" not in shown
    assert main(arguments) == 0
    assert main([*arguments, "--seed", "4"]) == 2
    assert "holds a run with another options (seed)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--critic", "nowhere"], "no critic 'nowhere'"),
        (["--gold", "off"], "no index: give --index DIR"),
        (["--column", "output"], "write it as KEY=COLUMN"),
        (["--gol", "only"], "--gol"),
        (["--threshold", "1"], "threshold=1: no critic is that sure"),
    ],
)
def test_defect_37_what_is_wrong_is_one_line(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[str], said: str
) -> None:
    arguments = ["augment", str(pairs), "--critic", "lexical", "-o", str(tmp_path / "out"), "--gold", "only", *changes]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "rows.jsonl").exists()


def test_a_finished_stream_is_not_taken_for_another_part_of_it(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream is not read again to compare its pairs: ten rows must not be returned where all were asked for."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "set"
    folder.mkdir()
    shutil.copy(pairs, folder / "train.jsonl")
    arguments = ["augment", str(folder), "--streaming", "--critic", "lexical", "-o", str(tmp_path / "out")]
    arguments += ["--gold", "only", "--balance", "none"]
    assert main([*arguments, "--limit", "3"]) == 0
    assert main([*arguments, "--limit", "3"]) == 0
    assert "3 rows of 3 pairs" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "another inputs (stream)" in capsys.readouterr().err


@pytest.mark.engine
def test_a_trained_critic_on_a_real_engine(
    pairs: Path, tmp_path: Path, tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    from critic.student.prompt import Layout, Limits, PromptCodec, write_card

    model = tmp_path / "critic"
    shutil.copytree(tiny_llama, model)
    assert main(["augment", str(pairs), "--critic", str(model), "-o", str(tmp_path / "x"), "--gold", "only"]) == 2
    assert "it is no critic" in capsys.readouterr().err
    limits = Limits(evidence=40, preceding=20, output=20, instruction=40)
    write_card(model, PromptCodec.from_tokenizer(AutoTokenizer.from_pretrained(model), Layout(), limits))
    assert main(["augment", str(pairs), "--critic", str(model), "-o", "x", "--gold", "only", "--dry-run"]) == 0
    counted, priced = capsys.readouterr().out.splitlines()
    assert counted.endswith("at most 40 judgments and 0 searches")
    assert 40 * 20 < int(priced.split()[3]) < 40 * 200
    assert "GiB of weights" in priced
    options = ["--critic", str(model), "--engine", "transformers", "--gold", "only", "--balance", "none"]
    for out in ("one", "two"):
        assert main(["augment", str(pairs), *options, "--threshold", "0", "-o", str(tmp_path / out)]) == 0
    for name in small_run.FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    (first, *_) = (tmp_path / "one" / "provenance.jsonl").read_text().splitlines()
    judged = json.loads(first)["segments"][0]["candidates"][0]["isrel"]
    assert judged["source"] == "judge"
    assert 0 < judged["coverage"] < 1
