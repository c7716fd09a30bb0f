"""Trained weights and what was measured of them go into the package, or nothing changes."""

import pytest
from json_files import write_json
from refusals import refused

from scripts.demo_model.ship import replace_weights
from selfrag.intrinsics.catalog import AdapterCard
from selfrag.training.intrinsics.job import product
from selfrag.training.reports import render


@pytest.fixture
def rewrite_run(tmp_path):
    """A run of the adapter for rewriting, its report, and the words that ship them."""
    adapter, report = tmp_path / "run/adapter", tmp_path / "report"
    adapter.mkdir(parents=True)
    report.mkdir()
    facts = {"held_out": 2, "sources": {"cast/changed": 8}}
    run = {"facts": facts, "config": {}, "inputs": {"base": "abc"}}
    groups = {"text": {"n": 4, "loss": 1.5, "accuracy": 0.5}}
    validation = {"loss": 1.5, "groups": groups}
    step = {"step": 1, "seconds": 2.0, "tokens": 9, "groups": groups}
    card = product(AdapterCard("query_rewrite", "chat", "0", {}, 8), 16)
    text = render(
        card, "the demo model", "demo", run, [step | {"validation": validation}]
    )
    (adapter / "README.md").write_text(text)
    (adapter / "adapter_model.safetensors").write_bytes(b"0" * 20_000)
    tables = "### Rewrite, all rows (7)\n\n| system |\n\n### Published: Table 9\n\n| LoRA |\n"
    (report / "query_rewrite.md").write_text(tables)
    manifest = {"settings": {"limit": None}, "commit": "c0ffee"}
    write_json(report / "figures.json", {"manifest": manifest})
    return (
        ["rewrite", "--run", tmp_path / "run", "--report", report],
        (
            "2 rows, of which nothing was learned",
            "TREC CAsT and iKAT (MIT)",
            "On development rows, all, code at commit `c0ffee`",
            "### Rewrite, all rows (7)",
        ),
        ("Published", "What it is good for"),
        {"--run": tmp_path, "--report": tmp_path},
    )


@pytest.fixture
def critic_run(tmp_path):
    """A run of a critic, its report, and the words that ship them."""
    run, report = tmp_path / "run", tmp_path / "report.md"
    for name in ("adapter", "model"):
        (run / name).mkdir(parents=True)
    (run / "adapter/adapter_model.safetensors").write_bytes(b"0" * 20_000)
    card = "# Critic\n\nJudges.\n\n## Before you publish it\n\nMeasure it.\n"
    (run / "model/README.md").write_text(card)
    (run / "model/training.json").write_text("{}")
    table = "| critic | IsRel |\n|---|---|\n| model | 0.700 |"
    report.write_text(
        f"## Accuracy, all rows\n\n{table}\n\n## Macro-F1, all rows\n\n## model in full\n"
    )
    return (
        ["critic", "--run", run, "--report", report],
        (f"## Measured\n\n### Accuracy, all rows\n\n{table}", "Apache-2.0"),
        ("Before you publish it", "in full"),
        {"--run": tmp_path, "--report": run / "model/README.md"},
    )


@pytest.mark.parametrize("kind", ["rewrite_run", "critic_run"])
def test_a_card_gets_figures_licences_and_use(kind, tmp_path, run_script, request):
    words, said, unsaid, wrong = request.getfixturevalue(kind)
    out = tmp_path / "package/weights"
    words += ["--to", out, "--note", "A first look."]
    for _ in range(2):  # a second time replaces the first
        assert run_script("ship", *words) == (0, "weights: 0.02 MB\n", "")
    assert (out / "adapter_model.safetensors").read_bytes() == b"0" * 20_000
    text = (out / "README.md").read_text()
    assert [part for part in said if part not in text] == []
    assert [part for part in unsaid if part in text] == []
    assert text.endswith("## Use\n\nA first look.\n")
    for option, value in wrong.items():
        code, _, error = run_script("ship", *words, option, value)
        assert code == 2
        assert error.count("\n") == 1
    assert (out / "README.md").read_text() == text


def test_what_is_there_stays_where_the_new_weights_cannot_be_copied(tmp_path):
    target = tmp_path / "package"
    target.mkdir()
    (target / "adapter_model.safetensors").write_bytes(b"old")
    with refused("cannot write"):
        replace_weights(tmp_path / "nowhere", target, {})
    assert [path.name for path in tmp_path.iterdir()] == ["package"]
    assert (target / "adapter_model.safetensors").read_bytes() == b"old"
