"""The loss plot and the model card say what the run's own files say, and no path of this machine."""

import json

import pytest
import tiny
from lettered import row
from trained import ROWS, config, write

from selfrag.errors import UserError
from selfrag.training.card import CHECKPOINT, last_figures, plot_log, read_log, render
from selfrag.training.job import Job, base_name, run


@pytest.fixture(scope="module", params=["lora", "full"])
def job(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("job")
    base = tiny.save_llama(home / "tiny-base", reflection=False, tie=True)
    rows = write(home / "rows.jsonl", [*ROWS, row("Hi!", instruction="Greet | `me`", id="d", source="other|kind")])
    done = Job(rows, base, home / "out", config(method=request.param, epochs=3, max_length=150, learning_rate=1e-3))
    run(done)
    return done


def test_a_job_leaves_product_plot_and_card(job):
    assert (job.run_dir / "loss.png").read_bytes().startswith(b"\x89PNG")
    card = (job.product / "README.md").read_text()
    manifest = json.loads((job.product / "training.json").read_text())
    assert manifest["facts"]["rows"] == 4
    assert "| s | 3 |" in card
    assert "| other\\|kind | 1 |" in card
    assert "for tiny-base" in card
    assert str(job.base.parent) not in card + json.dumps(manifest)
    assert f"{manifest['facts']['tokens']} tokens a pass" in card
    for group, count, loss, accuracy in last_figures(read_log(job.run_dir / "log.jsonl")):
        assert f"| {group} | {count} | {loss:.3f} | {accuracy:.3f} |" in card
    before = {path: path.read_bytes() for path in job.product.iterdir()}
    assert run(job) == job.product  # started again after its end, it changes nothing
    assert {path: path.read_bytes() for path in job.product.iterdir()} == before


def test_a_product_can_go_to_the_hub_as_it_is(job):
    from huggingface_hub import CommitOperationAdd, ModelCard
    from safetensors import safe_open

    card = ModelCard.load(job.product / "README.md")
    kind = "peft" if job.config.method == "lora" else "transformers"
    data = card.data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == (kind, "text-generation")
    assert "base_model" not in data  # a base without a name on the hub is not linked
    named = {path.name for path in job.product.iterdir()}
    for path in job.product.iterdir():
        CommitOperationAdd(path_in_repo=path.name, path_or_fileobj=path)  # refuses names that the hub does not take
        assert path.suffix in (".json", ".jinja", ".md", ".safetensors", ".model", ".txt")
    with safe_open(next(job.product.glob("*.safetensors")), "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
    wanted = {"adapter_config.json"} if kind == "peft" else {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert wanted <= named


def test_a_base_of_the_hub_keeps_its_name_and_is_linked(tmp_path):
    from huggingface_hub import ModelCard

    snapshot = tmp_path / "hub" / "models--owner--a-model" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    assert base_name(snapshot) == "owner/a-model"
    assert base_name(tmp_path / "my-base") == "my-base"
    run = {"inputs": {"base": "0", "rows": "1"}, "config": {"lora": {"rank": 2}}, "facts": {"tokens": 1}}
    text = render(CHECKPOINT, "owner/a-model", "cpu", run, [record(1, 1.0)])
    assert ModelCard(text).data.base_model == "owner/a-model"


def record(step, loss, n=2):
    groups = {"text": {"n": 4, "loss": loss, "accuracy": 0.5}, "isrel": {"n": n, "loss": 2 * loss, "accuracy": 0.25}}
    return {"step": step, "loss": loss, "tokens": 10, "seconds": 1.0, "groups": groups}


def test_the_last_figures_are_weighted_by_targets_over_the_last_tenth():
    records = [record(step, 9.0) for step in range(1, 19)] + [record(19, 1.0, n=1), record(20, 4.0, n=3)]
    assert list(last_figures(records)) == [
        ("isrel", 4, pytest.approx((1 * 2.0 + 3 * 8.0) / 4), 0.25),
        ("text", 8, pytest.approx(2.5), 0.5),
    ]


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (3, "3 too long and left out."),
        ({"IsSup needs 'output'": 2}, "2 left out (IsSup needs 'output')."),
        ({}, "none left out."),
    ],
)
def test_rows_left_out_are_counted_and_names_from_files_cannot_break_the_card(left_out, said):
    facts = {"tokens": 1, "sources": {"a\n<b>|`": 1}, "rows_left_out": left_out}
    run_record = {"config": {"method": "full"}, "inputs": {"base": "b"}, "facts": facts}
    card = render(CHECKPOINT, "base\x1b[31m", "mine\n# Title", run_record, [record(1, 1.0)])
    assert said in card
    assert "| a &lt;b>\\|' | 1 |" in card
    assert "\x1b" not in card
    assert "\n# Title" not in card


@pytest.mark.parametrize(
    ("content", "message"), [("", "holds no step"), ("{}\n", "step is missing"), ("x\n", "log.jsonl:1")]
)
def test_a_bad_log_is_named(tmp_path, content, message):
    (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        plot_log(tmp_path / "log.jsonl", tmp_path / "loss.png")
    assert not (tmp_path / "loss.png").exists()
