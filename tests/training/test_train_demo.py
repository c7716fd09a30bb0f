"""scripts/train_demo.py on tiny models: all stages, the last alone, and again; and how it makes IsRel stricter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from families import save_base
from lettered import passage, row
from trained import config, train, write

import train_demo as script
from relevance_calibration import restrain_relevance, threshold_for
from selfrag.errors import UserError
from selfrag.training.export import save_checkpoint
from selfrag.training.journal import fingerprint
from selfrag.training.run import layout_for

TEXTS = ["Snow is white.", "Grass is green and soft.", "Coal is black.", "Milk.", "Who knows that?", "A long one " * 9]


def held_out(stage: int) -> list:
    """Passages that answer and that do not, no two stages alike."""
    return [
        row("[Retrieval]", passage(text), ("[Irrelevant]", "[Relevant]")[n % 2], "Yes.", instruction=f"What? {stage}",
            id=f"h{n}", source="squad2/unanswerable")
        for n, text in enumerate(TEXTS)
    ]  # fmt: skip


@pytest.mark.parametrize(("most", "threshold"), [(0.0, 4.5), (0.25, 3.0), (0.4, 3.0), (0.5, 1.0), (0.75, -0.5)])
def test_the_threshold_by_hand(most, threshold):
    assert threshold_for([0.0, 4.0, -1.0, 2.0], most) == threshold


@pytest.mark.parametrize("family", ["llama tied", "llama"])
def test_the_exported_model_judges_as_the_calibration_says_and_no_other_row_moves(tmp_path, family):
    from transformers import AutoModelForCausalLM

    base, rows = save_base(tmp_path / "base", family), write(tmp_path / "rows.jsonl")
    trainee = train(rows, base, tmp_path / "run", config(epochs=1))
    layout = layout_for(trainee.tokenizer, config())
    examples = [layout.example(one) for one in held_out(1)]
    with pytest.raises(UserError, match="both IsRel labels"):
        restrain_relevance(trainee, examples[::2], most_taken=0.34)
    old = {name: value.detach().clone() for name, value in trainee.parameters.items()}
    calibration = restrain_relevance(trainee, examples, most_taken=0.34)
    ((name, changed),) = [(n, value) for n, value in trainee.parameters.items() if not torch.equal(value, old[n])]
    assert [i for i in range(15) if not torch.equal(changed[i], old[name][i])] == [4]
    assert calibration.taken[1] == pytest.approx(1 / 3)

    model = AutoModelForCausalLM.from_pretrained(save_checkpoint(trainee, tmp_path / "after"))
    yes, no = trainee.tokenizer.convert_tokens_to_ids(["[Relevant]", "[Irrelevant]"])
    said = []
    for example in examples:
        due = next(i for i, label in enumerate(example.labels) if label in (yes, no))
        logits = model(torch.tensor([example.ids[:due]])).logits[0, -1]
        said.append(bool(logits[yes] > logits[no]))
    assert calibration.taken[1] == pytest.approx(sum(said[::2]) / 3)
    assert calibration.missed[1] == pytest.approx(1 - sum(said[1::2]) / 3)


def made(folder: Path) -> dict:
    return json.loads((folder / "training.json").read_text())


def test_all_stages_in_one_command_and_the_last_alone_give_the_same_adapter(tmp_path, monkeypatch, run_script):
    for stage in range(1, 7):
        write(tmp_path / "rows" / str(stage) / "rows.jsonl")
        if stage < 4:
            write(tmp_path / "rows" / str(stage) / "heldout.jsonl", held_out(stage))
    base = tiny.save_llama(tmp_path / "base", reflection=False)
    quick = lambda runs: [(folder, config(max_steps=1, seed=run.seed)) for folder, run in runs]  # noqa: E731
    parts = [(name, quick(stages), quick(averaged), share) for name, stages, averaged, share in script.PARTS]
    monkeypatch.setattr(script, "PARTS", parts)

    def command(out: str, start: Path | None = None) -> tuple:
        more = [] if start is None else ["--start", start]
        return run_script("train_demo", "--rows", tmp_path / "rows", "--base", base, "--out", tmp_path / out, *more)

    assert command("whole")[0] == 0
    whole, before = made(tmp_path / "whole" / "adapter"), made(tmp_path / "whole" / "annotated")
    seeds = [stage["config"]["seed"] for stage in whole["stages"] if "config" in stage]
    assert seeds == [20, 21, 22, 23, 24, 24, 24]
    assert whole["stages"] == [*before["stages"], {"calibration": before["calibration"]}, *whole["stages"][-4:]]
    for one, (*_, share) in zip((before, whole), script.PARTS, strict=True):
        assert one["calibration"]["taken"][1] <= share

    assert command("last", tmp_path / "whole" / "annotated")[0] == 0
    weights = [tmp_path / run / "adapter" / "adapter_model.safetensors" for run in ("whole", "last")]
    assert fingerprint(weights[0]) == fingerprint(weights[1])
    assert not (tmp_path / "last" / "1").exists()

    stamp = weights[0].stat().st_mtime_ns
    assert command("whole")[0] == 0  # the command again only finds what is there
    assert weights[0].stat().st_mtime_ns == stamp
    for start, said in (("whole/adapter", "these 7 stages"), ("nothing", "training.json")):
        code, _, error = command("x", tmp_path / start)
        assert code == 2
        assert said in error
