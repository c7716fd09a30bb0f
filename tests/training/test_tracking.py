"""The log of a run on a board: TensorBoard's and wandb's own readers find it, live and afterwards."""

import json
import time

import pytest

from selfrag.cli.main import main
from selfrag.errors import UserError
from selfrag.training.tracking import figures_of, track


def record(step, loss, **more):
    groups = {"text": {"n": 4, "loss": loss, "accuracy": 0.5}, "isrel": {"n": 2, "loss": 2 * loss, "accuracy": 0.25}}
    return {"step": step, "loss": loss, "tokens": 10, "seconds": 2.0, "norm": 1.5, "rate": 0.5, "groups": groups} | more


def written(folder, records):
    (folder / "run").mkdir(parents=True, exist_ok=True)
    (folder / "run" / "manifest.json").write_text(json.dumps({"config": {"seed": 3}}))
    (folder / "run" / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder / "run" / "log.jsonl"


class Kept(dict):
    """Figures by step; none is sent twice."""

    def __call__(self, step, figures):
        assert step not in self
        self[step] = figures


def test_figures_by_hand():
    validation = {"loss": 0.75, "groups": {"issup": {"n": 1, "loss": 0.5, "accuracy": 1.0}}}
    found = figures_of(record(1, 2.0, norm=float("nan"), validation=validation))
    assert found == {
        "tokens_per_second": 5.0,
        "learning_rate/share_of_peak": 0.5,
        "train/loss": 2.0,
        "train/loss/text": 2.0,
        "train/accuracy/text": 0.5,
        "train/loss/isrel": 4.0,
        "train/accuracy/isrel": 0.25,
        "held_out/loss": 0.75,
        "held_out/loss/issup": 0.5,
        "held_out/accuracy/issup": 1.0,
    }


def test_tensorboard_reads_what_was_sent(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written(tmp_path / "out", [record(1, 2.0), record(2, 1.0)])
    for _ in range(2):  # the second time replaces the first
        assert main(["train", "track", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("2 steps sent\n")
    events = EventAccumulator(str(tmp_path / "out" / "run" / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [(1, 2.0), (2, 1.0)]
    assert [one.value for one in events.Scalars("train/accuracy/isrel")] == [0.25, 0.25]


def test_wandb_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    written(tmp_path / "out", [record(1, 2.0)])
    assert main(["train", "track", str(tmp_path / "out"), "--to", "wandb"]) == 0
    (file,) = (tmp_path / "out" / "run" / "wandb").glob("offline-run-*/*.wandb")
    until = time.monotonic() + 30  # wandb's own process writes the file
    while b"train/loss/isrel" not in file.read_bytes():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_live_run_is_followed_over_a_restart(tmp_path):
    log = written(tmp_path, [record(1, 3.0), record(2, 2.0)])
    kept, waits = Kept(), iter(range(9))

    def wait():
        place = next(waits)
        if place == 0:
            with log.open("a") as file:
                file.write(json.dumps(record(3, 1.0))[:20])  # half a line
        elif place == 1:  # continued from step 1
            log.write_text(json.dumps(record(1, 3.0)) + "\n" + json.dumps(record(2, 2.0)) + "\n")
        elif place == 2:
            with log.open("a") as file:
                file.write("".join(json.dumps(record(step, 0.5)) + "\n" for step in (3, 4)))
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        track(tmp_path / "run", kept, follow=True, wait=wait)
    assert {step: figures["train/loss"] for step, figures in kept.items()} == {1: 3.0, 2: 2.0, 3: 0.5, 4: 0.5}


@pytest.mark.parametrize("content", [b"{\n", b"\xff\xfe\n", b'{"step": 1, "groups": 5}\n'])
def test_a_damaged_log_is_one_line(tmp_path, content):
    written(tmp_path, []).write_bytes(content)
    with pytest.raises(UserError, match="log"):
        track(tmp_path / "run", Kept())
