"""train_demo.py on tiny models: all stages, and again; and how it makes IsRel stricter."""

import pytest
import tiny
from json_files import read_json
from lettered import passage, row
from trained import config, write

from scripts.demo_model import train_demo as script
from scripts.demo_model.relevance_calibration import threshold_for

TEXTS = [
    "Snow is white.",
    "Grass is green and soft.",
    "Coal is black.",
    "Milk.",
    "Who knows that?",
    "A long one " * 9,
]


def held_out(stage):
    """Passages that answer and that do not, no two stages alike."""
    return [
        row("[Retrieval]", passage(text), ("[Irrelevant]", "[Relevant]")[n % 2], "Yes.", instruction=f"What? {stage}",
            id=f"h{n}", source="squad2/unanswerable")
        for n, text in enumerate(TEXTS)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "most, threshold", [(0.0, 4.5), (0.25, 3.0), (0.4, 3.0), (0.5, 1.0), (0.75, -0.5)]
)
def test_the_threshold_by_hand(most, threshold):
    assert threshold_for([0.0, 4.0, -1.0, 2.0], most) == threshold


def made(folder):
    return read_json(folder / "training.json")


def test_all_stages_in_one_command_which_resumes(tmp_path, monkeypatch, run_script):
    for stage in range(1, 7):
        write(tmp_path / "rows" / str(stage) / "rows.jsonl")
        if stage < 4:
            write(tmp_path / "rows" / str(stage) / "heldout.jsonl", held_out(stage))
    base = tiny.save_llama(tmp_path / "base", reflection=False)

    def quick(runs):
        return [(folder, config(max_steps=1, seed=run.seed)) for folder, run in runs]

    parts = [
        (name, quick(stages), quick(averaged), share)
        for name, stages, averaged, share in script.PARTS
    ]
    monkeypatch.setattr(script, "PARTS", parts)

    words = f"train_demo --rows {tmp_path}/rows --base {base} --out {tmp_path}/whole"
    assert run_script(*words.split())[0] == 0
    whole = made(tmp_path / "whole/adapter")
    before = made(tmp_path / "whole/annotated")
    seeds = [stage["config"]["seed"] for stage in whole["stages"] if "config" in stage]
    assert seeds == [20, 21, 22, 23, 24, 24, 24]
    assert whole["stages"] == [
        *before["stages"],
        {"calibration": before["calibration"]},
        *whole["stages"][-4:],
    ]
    for one, (*_, share) in zip((before, whole), script.PARTS, strict=True):
        assert one["calibration"]["taken"][1] <= share

    weights = tmp_path / "whole/adapter/adapter_model.safetensors"
    stamp = weights.stat().st_mtime_ns
    # the command again only finds what is there
    assert run_script(*words.split())[0] == 0
    assert weights.stat().st_mtime_ns == stamp
