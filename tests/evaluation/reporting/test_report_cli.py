"""`selfrag eval report`, as it is typed."""

from __future__ import annotations

import csv
from pathlib import Path

from selfrag.cli.main import main


def test_everything_that_it_writes(runs: list[Path], tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    names = ("page.html", "tables.md", "tables.csv", "plots/plots.svg")
    files = [tmp_path / name for name in names]
    options = [word for path in files for word in ("-o", str(path))]
    assert main(["eval", "report", *map(str, runs), *options, "--against", "finetuned", "--items", "2"]) == 0
    shown = capsys.readouterr().out
    for part in ("Average over 2 files", "reflective", "tok.", "searches", "s/item"):
        assert part in shown
    page, tables, figures, plots = (path.read_text(encoding="utf-8") for path in files)
    assert page.count("<article") == 4
    assert "### short (short, 8 items)" in tables
    assert any(row["metric"] == "retrieval_rate" for row in csv.DictReader(figures.splitlines()))
    assert "reflective" in plots


def test_a_directory_of_runs_is_enough_and_narrow_terminals_get_less(runs: list[Path], capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["eval", "report", str(runs[0].parent), "--only", "short"]) == 0
    shown = capsys.readouterr().out
    assert "finetuned" in shown
    assert "searches" not in shown
    assert "long (" not in shown


def test_what_cannot_be_done_is_one_line(runs: list[Path], tmp_path: Path, capsys) -> None:
    for words, said in (
        ([str(tmp_path / "none")], "holds no run: manifest.json is missing"),
        ([*map(str, runs), "-o", "page.doc"], "cannot tell what to write; the file must end in .html"),
        ([*map(str, runs), "--against", "ours"], "no run of a system called 'ours'"),
        ([*map(str, runs), "--only", "third"], "has no third; it has short, long"),
        ([str(runs[0]), "-o", "/proc/none/page.html"], "cannot write"),
    ):
        assert main(["eval", "report", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
