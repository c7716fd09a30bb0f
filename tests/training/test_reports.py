"""What tells of a run: model card, boards. They say what its files say, and no path of this machine."""

import json
import time

import pytest
import tiny
from json_files import parse_table, read_json, write_json
from lettered import row
from refusals import refused
from trained import ROWS, config, write

from selfrag.cli.main import main
from selfrag.training.job import TrainingJob, base_name, run
from selfrag.training.records import read_log
from selfrag.training.reports import CHECKPOINT, last_figures, render, track
from selfrag.training.settings import Scale


def record(step, loss, n=2, **more):
    groups = {
        "text": {"n": 4, "loss": loss, "accuracy": 0.5},
        "isrel": {"n": n, "loss": 2 * loss, "accuracy": 0.25},
    }
    return {
        "step": step,
        "loss": loss,
        "tokens": 10,
        "seconds": 2.0,
        "norm": 1.5,
        "rate": 0.5,
        "groups": groups,
    } | more


@pytest.mark.parametrize("method, scale", [("lora", None), ("full", Scale())])
def test_a_job_leaves_a_card_and_a_product_that_can_go_to_the_hub_as_it_is(
    tmp_path, method, scale
):
    from huggingface_hub import CommitOperationAdd, ModelCard
    from safetensors import safe_open

    base = tiny.save_llama(tmp_path / "tiny-base", reflection=False, tie=True)
    rows = write(
        tmp_path / "rows.jsonl",
        [*ROWS, row("Hi!", instruction="Greet", id="d", source="other|kind")],
    )
    job = TrainingJob(
        rows,
        base,
        tmp_path / "out",
        config(method=method, epochs=3, max_length=150),
        scale,
    )
    assert run(job) == job.product
    card = (job.product / "README.md").read_text()
    manifest = read_json(job.product / "training.json")
    figures = last_figures(read_log(job.run_dir / "log.jsonl"))
    for said in (
        "| s | 3 |",
        "| other\\|kind | 1 |",
        "for tiny-base",
        f"{manifest['facts']['tokens']} tokens a pass",
        *(
            f"| {group} | {count} | {loss:.3f} | {accuracy:.3f} |"
            for group, count, loss, accuracy in figures
        ),
    ):
        assert said in card
    assert str(tmp_path) not in card + json.dumps(manifest)

    kind = "peft" if method == "lora" else "transformers"
    data = ModelCard.load(job.product / "README.md").data.to_dict()
    assert data["library_name"] == kind
    assert data["pipeline_tag"] == "text-generation"
    assert "base_model" not in data  # a base without a name on the hub is not linked
    for path in job.product.iterdir():
        # refuses names that the hub does not take
        CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path)
        assert path.suffix in ".json .jinja .md .safetensors .model .txt".split()
    with safe_open(next(job.product.glob("*.safetensors")), "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
    before = {path: path.read_bytes() for path in job.product.iterdir()}
    assert run(job) == job.product  # started again after its end, it changes nothing
    assert {path: path.read_bytes() for path in job.product.iterdir()} == before


def test_a_base_of_the_hub_keeps_its_name_and_is_linked(tmp_path):
    from huggingface_hub import ModelCard

    snapshot = tmp_path / "hub/models--owner--a-model/snapshots/0123abcd"
    snapshot.mkdir(parents=True)
    assert base_name(snapshot) == "owner/a-model"
    run = json.loads("""{"inputs": {"base": "0", "rows": "1"},
 "config": {"lora": {"rank": 2}},
 "facts": {"tokens": 1}}""")
    text = render(CHECKPOINT, "owner/a-model", "cpu", run, [record(1, 1.0)])
    assert ModelCard(text).data.base_model == "owner/a-model"


def test_the_last_figures_are_weighted_by_targets_over_the_last_tenth():
    records = [record(step, 9.0) for step in range(1, 19)] + [
        record(19, 1.0, n=1),
        record(20, 4.0, n=3),
    ]
    assert list(last_figures(records)) == [
        ("isrel", 4, pytest.approx((1 * 2.0 + 3 * 8.0) / 4), 0.25),
        ("text", 8, pytest.approx(2.5), 0.5),
    ]


@pytest.mark.parametrize(
    "left_out, said",
    parse_table("""
3 | 3 too long and left out.
{"IsSup needs 'output'": 2} | 2 left out (IsSup needs 'output').
{} | none left out.
"""),
)
def test_rows_left_out_are_counted_and_names_from_files_cannot_break_the_card(
    left_out, said
):
    facts = {"tokens": 1, "sources": {"a\n<b>|`": 1}, "rows_left_out": left_out}
    run_record = {"config": {"method": "full"}, "inputs": {"base": "b"}, "facts": facts}
    card = render(
        CHECKPOINT, "base\x1b[31m", "mine\n# Title", run_record, [record(1, 1.0)]
    )
    assert said in card
    assert "| a &lt;b>\\|\\` | 1 |" in card
    assert "\x1b" not in card
    assert "\n# Title" not in card


@pytest.fixture
def log(tmp_path):
    """Of a run in `out`."""
    (tmp_path / "out/run").mkdir(parents=True)
    write_json(tmp_path / "out/run/manifest.json", {"config": {"seed": 3}})
    return tmp_path / "out/run/log.jsonl"


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records)


class Kept(dict):
    """Figures by step; none is sent twice."""

    def __call__(self, step, figures):
        assert step not in self
        self[step] = figures


@pytest.mark.parametrize(
    "content", [b"{\n", b"\xff\xfe\n", b'{"step": 1, "groups": 5}\n']
)
def test_a_damaged_log_is_one_line(log, content):
    log.write_bytes(content)
    with refused("log"):
        track(log.parent, Kept())


def test_tensorboard_reads_what_was_sent(log, capsys):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log.write_text(lines(record(1, 2.0), record(2, 1.0)))
    for _ in range(2):  # the second time replaces the first
        assert main(["train", "track", str(log.parents[1])]) == 0
    assert capsys.readouterr().out.endswith("2 steps sent\n")
    events = EventAccumulator(str(log.with_name("tensorboard"))).Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [
        (1, 2.0),
        (2, 1.0),
    ]


def test_wandb_without_a_network(log, monkeypatch):
    """What is sent holds no key of the environment."""
    pytest.importorskip("wandb")
    key = "0123456789abcdef0123456789abcdef01234567"
    for name in ("WANDB_API_KEY", "OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, key)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log.write_text(lines(record(1, 2.0)))
    assert main(f"train track {log.parents[1]} --to wandb".split()) == 0
    (file,) = log.with_name("wandb").glob("offline-run-*/*.wandb")
    until = time.monotonic() + 30  # wandb's own process writes the file
    while b"train/loss/isrel" not in file.read_bytes():
        assert time.monotonic() < until
        time.sleep(0.1)
    sent = [path for path in log.with_name("wandb").rglob("*") if path.is_file()]
    assert [path for path in sent if key.encode() in path.read_bytes()] == []


def test_undefined_numbers_are_left_out_and_held_out_ones_sent(log):
    held = json.loads(
        '{"loss": 0.75, "groups": {"issup": {"n": 1, "loss": 0.5, "accuracy": 1.0}}}'
    )
    log.write_text(
        lines(record(1, 3.0, norm=float("nan"), validation=held), record(2, 2.0))
    )
    kept = Kept()
    assert track(log.parent, kept) == 2
    assert kept[1].keys() ^ kept[2].keys() == {
        "gradient_norm",
        "held_out/loss",
        "held_out/loss/issup",
        "held_out/accuracy/issup",
    }
    assert kept[1]["train/loss/isrel"] == 6.0
    assert kept[1]["held_out/loss"] == 0.75
