"""scripts/ship_intrinsics.py: adapters and what was measured of them go into the package, or nothing does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfrag.intrinsics.catalog import AdapterCard
from selfrag.training.intrinsics.job import render


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run of one adapter and its report."""
    adapter = tmp_path / "runs" / "answerability" / "adapter"
    adapter.mkdir(parents=True)
    run = {
        "facts": {"held_out": 2, "sources": {"squad2/answerable": 8}},
        "config": {"reach": {"last_layers": 16}},
        "inputs": {"base": "abc"},
    }
    steps = [
        {"step": 1, "seconds": 2.0, "tokens": 9, "validation": {"loss": 1.5, "groups": {"text": {"accuracy": 0.5}}}}
    ]
    card = AdapterCard("answerability", "chat", "0", {}, 8)
    (adapter / "README.md").write_text(render(card, run, steps, base="the demo model", recipe="demo"))
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"0" * 1000)
    report = tmp_path / "report"
    report.mkdir()
    tables = "### Answerability, all rows (7)\n\n| system | F1 |\n\n### Published: Table 9\n\n| LoRA | 75.2 |\n"
    (report / "answerability.md").write_text(tables)
    manifest = {"settings": {"limit": None}, "commit": "c0ffee"}
    (report / "figures.json").write_text(json.dumps({"manifest": manifest, "figures": {}}))
    return tmp_path


@pytest.fixture
def ship(trained, run_script):
    """Runs the script; gives its exit code, output and error output."""

    def run(*more: str) -> tuple[int, str, str]:
        where = ["--runs", str(trained / "runs"), "--report", str(trained / "report"), "--to", str(trained / "package")]
        return run_script("ship_intrinsics", *where, *more)

    return run


def test_a_card_gets_figures_licences_and_what_it_is_good_for(trained, ship):
    for _ in range(2):  # a second time replaces the first
        assert ship("--note", "answerability=A gate with a low threshold.") == (0, "answerability: 0.00 MB\n", "")
        folder = trained / "package" / "answerability"
        (folder / "combined.json").write_text("{}")
    assert ship()[0] == 0
    assert (folder / "combined.json").read_text() == "{}"  # what was learned about tokens stays
    ship("--note", "answerability=A gate with a low threshold.")
    assert (folder / "adapter_model.safetensors").read_bytes() == b"0" * 1000
    text = (folder / "README.md").read_text()
    assert "best of 1 looks at 2 held-out examples" in text
    assert "SQuAD 2.0 (CC BY-SA 4.0)" in text
    assert "On development rows, all, code at commit `c0ffee`" in text
    assert "### Answerability, all rows (7)" in text
    assert "Published" not in text
    assert text.endswith("## Use\n\nA gate with a low threshold.\n")
    assert [path.name for path in (trained / "package").iterdir()] == ["answerability"]


def test_what_does_not_fit_together_is_one_line_and_changes_nothing(trained, ship):
    for more, said in (
        (["--note", "answerability"], "write NAME=TEXT"),
        (["--note", "uncertainty=Good."], "there is no such adapter"),
        (["--report", str(trained)], "does not measure all of answerability"),
        (["--runs", str(trained)], "holds no adapter"),
    ):
        code, _, error = ship(*more)
        assert code == 2
        assert said in error
        assert error.count("\n") == 1
    assert not (trained / "package").exists()


def test_what_is_shipped_already_is_not_shipped_from_itself(trained, ship):
    assert ship()[0] == 0
    code, _, error = ship("--runs", str(trained / "package"))
    assert (code, error.count("\n")) == (2, 1)
    assert "not as training wrote it" in error
    assert (trained / "package" / "answerability" / "adapter_model.safetensors").exists()
