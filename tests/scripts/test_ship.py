"""Trained weights and what was measured of them go into the package, or nothing changes."""

import pytest
from json_files import write_json
from refusals import refused

from scripts.demo_model.ship import replace_weights
from selfrag.intrinsics.catalog import AdapterCard
from selfrag.training.intrinsics.job import product
from selfrag.training.reports import render


@pytest.fixture
def ship(tmp_path, run_script):
    """Ships a run of one adapter with its report; gives exit code, output and error output."""
    adapter = tmp_path / "runs" / "answerability" / "adapter"
    report = tmp_path / "report"
    adapter.mkdir(parents=True)
    report.mkdir()
    facts = {"held_out": 2, "sources": {"squad2/answerable": 8}}
    run = {"facts": facts, "config": {}, "inputs": {"base": "abc"}}
    groups = {"text": {"n": 4, "loss": 1.5, "accuracy": 0.5}}
    validation = {"loss": 1.5, "groups": groups}
    steps = [
        {
            "step": 1,
            "seconds": 2.0,
            "tokens": 9,
            "groups": groups,
            "validation": validation,
        }
    ]
    card = AdapterCard("answerability", "chat", "0", {}, 8)
    (adapter / "README.md").write_text(
        render(product(card, 16), "the demo model", "demo", run, steps)
    )
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"0" * 1000)
    tables = "### Answerability, all rows (7)\n\n| system | F1 |\n\n### Published: Table 9\n\n| LoRA | 75.2 |\n"
    (report / "answerability.md").write_text(tables)
    manifest = {"settings": {"limit": None}, "commit": "c0ffee"}
    write_json(report / "figures.json", {"manifest": manifest, "figures": {}})

    def start(*more):
        where = [
            "--runs",
            adapter.parents[1],
            "--report",
            report,
            "--to",
            tmp_path / "package",
        ]
        return run_script("ship", "intrinsics", *where, *more)

    return start


def test_an_adapters_card_gets_figures_licences_and_what_it_is_good_for(tmp_path, ship):
    folder = tmp_path / "package" / "answerability"
    for _ in range(2):  # a second time replaces the first
        assert ship("--note", "answerability=A gate with a low threshold.") == (
            0,
            "answerability: 0.00 MB\n",
            "",
        )
        # what was learned about tokens stays
        (folder / "combined.json").write_text("{}")
    assert (folder / "adapter_model.safetensors").read_bytes() == b"0" * 1000
    text = (folder / "README.md").read_text()
    for said in (
        "2 rows, of which nothing was learned. The parameters are those after step 1, the best of 1 look",
        "SQuAD 2.0 (CC BY-SA 4.0)",
        "On development rows, all, code at commit `c0ffee`",
        "### Answerability, all rows (7)",
        "## Use\n\nA gate with a low threshold.\n",
    ):
        assert said in text
    assert "Published" not in text
    for more, said in (
        (["--runs", str(tmp_path / "package")], "not as training wrote it"),
        (["--note", "uncertainty=Good."], "there is no such adapter"),
        (["--report", str(tmp_path)], "does not measure all of answerability"),
    ):
        code, _, error = ship(*more)
        assert (code, error.count("\n")) == (2, 1)
        assert said in error
    assert (folder / "combined.json").exists()


def test_a_critics_card_gets_tables_licences_and_use(tmp_path, run_script):
    run = tmp_path / "run"
    out = tmp_path / "package" / "adapter"
    report = tmp_path / "report.md"
    for name in ("adapter", "model"):
        (run / name).mkdir(parents=True)
    (run / "adapter" / "critic.json").write_text("{}")
    (run / "adapter" / "adapter_model.safetensors").write_bytes(b"0" * 20_000)
    (run / "model" / "README.md").write_text(
        "# Critic\n\nJudges.\n\n## Before you publish it\n\nMeasure it.\n"
    )
    (run / "model" / "training.json").write_text('{"commit": "c0ffee"}')
    table = "| critic | IsRel |\n|---|---|\n| model | 0.700 |"
    report.write_text(
        f"## Accuracy, all rows\n\n{table}\n\n## Macro-F1, all rows\n\n## model in full\n"
    )
    words = ["--run", run, "--report", report, "--to", out, "--note", "A first look."]
    for _ in range(2):  # a second time replaces the first
        assert run_script("ship", "critic", *words) == (0, "adapter: 0.02 MB\n", "")
    names = {"README.md", "adapter_model.safetensors", "critic.json", "training.json"}
    assert {path.name for path in out.iterdir()} == names
    text = (out / "README.md").read_text()
    assert "Before you publish it" not in text
    assert "published under Apache-2.0" in text
    assert f"## Measured\n\n### Accuracy, all rows\n\n{table}" in text
    assert "in full" not in text
    assert text.endswith("## Use\n\nA first look.\n")
    report.write_text("nothing")
    code, _, error = run_script("ship", "critic", *words)
    assert (code, error.count("\n")) == (2, 1)
    assert "is not as `critic eval` printed it" in error
    assert (out / "README.md").read_text() == text


def test_issue_48_what_is_there_stays_where_the_new_weights_cannot_be_copied(
    tmp_path,
):
    target = tmp_path / "package"
    target.mkdir()
    (target / "adapter_model.safetensors").write_bytes(b"old")
    with refused("cannot write"):
        replace_weights(tmp_path / "nowhere", target, {})
    assert [path.name for path in tmp_path.iterdir()] == ["package"]
    assert (target / "adapter_model.safetensors").read_bytes() == b"old"
