"""scripts/ship_critic.py: a critic and what was measured of it go into the package, or nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

CARD = "# Critic for Self-RAG\n\nJudges cases.\n\n## Before you publish it\n\nMeasure it.\n"
REPORT = """## Accuracy, all rows

| critic | IsRel |
|---|---|
| model | 0.700 |

## Macro-F1, all rows

| critic | IsRel |

## model in full

| group | rows |
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for name in ("adapter", "model"):
        (folder / name).mkdir(parents=True)
    (folder / "adapter" / "critic.json").write_text("{}")
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"0" * 20_000)
    (folder / "model" / "README.md").write_text(CARD)
    (folder / "model" / "training.json").write_text('{"commit": "c0ffee"}')
    (tmp_path / "report.md").write_text(REPORT)
    return folder


@pytest.fixture
def ship(run, run_script):
    """Runs the script; gives its exit code, output and error output."""

    def start(*more: str) -> tuple[int, str, str]:
        base = run.parent
        where = ["--run", str(run), "--report", str(base / "report.md"), "--to", str(base / "package" / "adapter")]
        return run_script("ship_critic", *where, *more)

    return start


def test_the_card_gets_tables_licences_and_use(run, ship):
    for _ in range(2):  # a second time replaces the first
        assert ship("--note", "A first look.") == (0, "0.02 MB\n", "")
    folder = run.parent / "package" / "adapter"
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "adapter_model.safetensors",
        "critic.json",
        "training.json",
    }
    text = (folder / "README.md").read_text()
    assert "Before you publish it" not in text
    assert "published under Apache-2.0" in text
    assert "## Measured\n\n### Accuracy, all rows\n\n| critic | IsRel |\n|---|---|\n| model | 0.700 |" in text
    assert "### Macro-F1, all rows" in text
    assert "in full" not in text
    assert text.endswith("## Use\n\nA first look.\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda base: (base / "report.md").write_text("nothing"), "not as training and evaluation wrote them"),
        (lambda base: (base / "report.md").write_bytes(b"\xff\xfe"), "not complete"),
        (lambda base: (base / "run" / "model" / "README.md").unlink(), "not complete"),
        (lambda base: (base / "run" / "model" / "training.json").unlink(), "not complete"),
        (lambda base: (base / "run" / "adapter" / "critic.json").unlink(), "no adapter of a critic"),
    ],
)
def test_what_is_missing_is_one_line_and_changes_nothing(run, ship, spoil, said):
    ship()
    kept = (run.parent / "package" / "adapter" / "README.md").read_text()
    spoil(run.parent)
    code, _, error = ship()
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert (run.parent / "package" / "adapter" / "README.md").read_text() == kept
