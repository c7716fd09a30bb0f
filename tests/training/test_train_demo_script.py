"""scripts/train_demo.py on a tiny model: all stages, the last alone, and again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from lettered import passage, row
from trained import config, write

import train_demo as script
from selfrag.training.journal import fingerprint
from selfrag.training.rows import Row


def held_out(stage: int) -> list[Row]:
    """One passage that answers and two that do not, no two stages alike."""
    good, bad = [passage("Water boils at 100."), "[Relevant]", "At 100."], ["[Irrelevant]", "No answer."]
    return [
        row("[Retrieval]", *good, instruction=f"Question {stage}?", id="g", source="nq/gold"),
        row("[Retrieval]", passage(f"Wet {stage}."), *bad, id="u", source="squad2/unanswerable"),
        row("[Retrieval]", passage(f"Cold {stage}."), *bad, id="v", source="squad2/unanswerable"),
    ]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Rows of all stages, a base, and settings for seconds."""
    for stage in range(1, 7):
        write(tmp_path / "rows" / str(stage) / "rows.jsonl")
        if stage < 4:
            write(tmp_path / "rows" / str(stage) / "heldout.jsonl", held_out(stage))
    tiny.save_llama(tmp_path / "base", reflection=False)
    quick = lambda runs: [(folder, config(max_steps=1, seed=run.seed)) for folder, run in runs]  # noqa: E731
    parts = [(name, quick(stages), quick(averaged), share) for name, stages, averaged, share in script.PARTS]
    monkeypatch.setattr(script, "PARTS", parts)
    return tmp_path


@pytest.fixture
def command(here, monkeypatch):
    def run(out: str, *more: str) -> int:
        words = ["--rows", str(here / "rows"), "--base", str(here / "base"), "--out", str(here / out), *more]
        monkeypatch.setattr("sys.argv", ["train_demo.py", *words])
        return script.main()

    return run


def made(folder: Path) -> dict:
    return json.loads((folder / "training.json").read_text())


def test_all_stages_in_one_command_and_the_last_alone_give_the_same_adapter(here, command, capsys):
    assert command("whole") == 0
    whole = made(here / "whole" / "adapter")
    seeds = [stage["config"]["seed"] for stage in whole["stages"] if "config" in stage]
    assert seeds == [20, 21, 22, 23, 24, 24, 24]
    before = made(here / "whole" / "annotated")
    assert whole["stages"] == [*before["stages"], {"calibration": before["calibration"]}, *whole["stages"][-4:]]
    for one, (*_, share) in zip((before, whole), script.PARTS, strict=True):
        assert one["calibration"]["taken"][1] <= share

    assert command("last", "--start", str(here / "whole" / "annotated")) == 0

    weights = [here / run / "adapter" / "adapter_model.safetensors" for run in ("whole", "last")]
    assert fingerprint(weights[0]) == fingerprint(weights[1])
    assert not (here / "last" / "1").exists()

    stamp = weights[0].stat().st_mtime_ns
    assert command("whole") == 0  # the command again only finds what is there
    assert weights[0].stat().st_mtime_ns == stamp
    assert command("x", "--start", str(here / "whole" / "adapter")) == 2
    assert "these 7 stages" in capsys.readouterr().err
    assert command("x", "--start", str(here / "nothing")) == 2
    assert "training.json" in capsys.readouterr().err
