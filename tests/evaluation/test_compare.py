"""The comparison: bootstrap and pairing checked by hand and by coverage, tables from real run directories."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scripted_run import FILE, Slow, job, reply
from written import PROMPTING

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.scripted import Reply
from selfrag.evaluation.baselines import FineTuned
from selfrag.evaluation.comparison import average, bootstrap, compare, read_run, read_runs
from selfrag.evaluation.metrics.registry import METRICS
from selfrag.evaluation.runner import run
from selfrag.evaluation.tables import Terminal, csv_text, markdown
from selfrag.evaluation.task import BIOGRAPHY

WORDS = METRICS["words"]


def means(*values: float) -> list[tuple[float, float]]:
    return [(value, 1.0) for value in values]


def test_figures_are_sums_over_sums_and_items_without_a_part_do_not_count() -> None:
    plain, pooled, none = bootstrap([[*means(1, 0), None], [(2.0, 4.0), (0.0, 0.0), (1.0, 2.0)], [None] * 3])
    assert (plain.value, plain.n) == (0.5, 2)
    assert (pooled.value, pooled.n) == (0.5, 2)
    assert none is None
    assert bootstrap([[(0.0, 0.0)]]) == [None]
    with pytest.raises(ValueError, match="different numbers"):
        bootstrap([means(1), means(1, 2)])


def test_pairing_finds_what_two_separate_intervals_hide() -> None:
    """Better on 10 of 100 items and worse on none: the intervals overlap, the paired difference is above 0."""
    worse = [i % 2 for i in range(100)]
    better = [1 if i < 20 else right for i, right in enumerate(worse)]
    one, other = bootstrap([means(*better), means(*worse)])
    assert one.estimate.low < other.estimate.high
    difference = (one - other).estimate
    assert difference.value == pytest.approx(0.1)
    assert 0.0 < difference.low < 0.1 < difference.high < 0.2


def test_the_average_is_plain_and_its_files_are_drawn_apart() -> None:
    (large,) = bootstrap([means(*[1.0, 0.0] * 200)], name="large")
    (small,) = bootstrap([means(*[1.0, 1.0, 1.0, 0.0] * 5)], name="small")
    found = average([large, small])
    assert found.value == pytest.approx((0.5 + 0.75) / 2)
    assert abs(np.corrcoef(large.samples, small.samples)[0, 1]) < 0.1
    width = (large.samples.std() ** 2 + small.samples.std() ** 2) ** 0.5 / 2
    assert found.samples.std() == pytest.approx(width, rel=0.1)
    assert average([large, None]) is None
    assert average([]) is None


PASSAGES = (Passage("gold", "Paris.", "T"), Passage("other", "Rome.", "T"))
WITH_PASSAGES = replace(
    FILE,
    name="other",
    items=tuple(replace(item, passages=PASSAGES, gold=frozenset({"gold"})) for item in FILE.items[:30]),
)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two systems over two files: one writes Paris for every third item, the other always, from the first passage."""

    def always(request: Generate) -> Reply | Failed:
        return Reply((*PROMPTING.codec.encode("Paris"), 0))

    first, second = tmp_path / "finetuned", tmp_path / "sail"
    files = [FILE, WITH_PASSAGES]
    run(job(first), files, lambda: Slow(reply, 0.0))
    other = replace(job(second), system=FineTuned(PROMPTING, 1), identity={"name": "sail", "model": {}})
    run(other, files, lambda: Slow(always, 0.0))
    return [first, second]


def test_tables_of_two_systems(runs: list[Path]) -> None:
    found = compare(read_runs(runs), against="finetuned")
    (table, cited), averaged = found.tables, found.average
    assert [(t.name, t.kind, t.items) for t in found.tables] == [("set", "short", 60), ("other", "short", 30)]
    low, high = table.rows
    # Items 0, 3, .. 57 of 60 are right for the first system; all for the second.
    assert low.figures["contains"].value == pytest.approx(1 / 3)
    assert high.figures["contains"].value == 1.0
    difference = high.differences["contains"]
    assert difference.value == pytest.approx(2 / 3)
    assert difference.low > 0.5
    assert low.differences == {}
    assert (low.failed, high.failed) == (1, 0)
    assert any("60 of 60 items came without passages" in note for note in table.notes)
    assert any("finetuned: 1 items failed" in note for note in table.notes)
    # Citations: nobody cites in the first file; in the second the first passage is gold, and the first system has none.
    assert table.rows[1].figures["citation_precision"] is None
    assert cited.rows[0].figures["citation_precision"] is None
    assert cited.rows[1].figures["citation_precision"].value == 1.0
    assert averaged.rows[0].figures["score"].value == pytest.approx(1 / 3)
    assert averaged.rows[0].figures["citation_precision"] is None


def test_a_headline_that_counts_is_not_averaged_with_shares(tmp_path: Path) -> None:
    counted = replace(WITH_PASSAGES, name="texts", task=BIOGRAPHY)
    run(job(tmp_path / "run"), [FILE, counted], lambda: Slow(reply, 0.0))
    averaged = compare(read_runs([tmp_path / "run"])).average
    assert averaged.rows[0].figures["score"].value == pytest.approx(1 / 3)
    assert averaged.notes == ("score is the mean of contains of set",)


def test_every_rendering_holds_every_system_and_no_nan(runs: list[Path]) -> None:
    found = compare(read_runs(runs), against="finetuned")
    text = markdown(found)
    assert "### Average over 2 files" in text
    assert "### set (short, 60 items)" in text
    assert re.search(r"\| sail \| 100\.0 \[100\.0, 100\.0\] \| \+66\.7 \[\d+\.\d, \d+\.\d\] \* \|", text)
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    (row,) = [r for r in rows if (r["file"], r["system"], r["metric"]) == ("set", "sail", "contains")]
    assert (row["value"], row["n"], row["against"]) == ("1", "60", "finetuned")
    assert float(row["difference_value"]) == pytest.approx(2 / 3, abs=1e-5)
    (failed,) = [r for r in rows if (r["file"], r["system"], r["metric"]) == ("set", "finetuned", "failed")]
    assert failed["value"] == "1"
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(Terminal(found))
    shown = console.export_text()
    assert "sail" in shown
    for rendering in (text, csv_text(found), shown):
        assert "nan" not in rendering.replace("finetuned", "").lower()
        assert "None" not in rendering


def test_runs_that_cannot_be_compared(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="both of a system called finetuned"):
        read_runs([runs[0], runs[0]])
    assert list(read_runs(runs, ["other"])[0].files) == ["other"]
    with pytest.raises(UserError, match="no run to compare"):
        read_runs([])
    half = tmp_path / "half"
    run(replace(job(half), identity={"name": "half", "model": {}}), [FILE], lambda: Slow(reply, 0.0))
    with pytest.raises(UserError, match="other is not in both"):
        read_runs([runs[0], half])
    sampled = tmp_path / "sampled"
    run(replace(job(sampled, settings={"limit": 3}), identity={"name": "s"}), [FILE], lambda: Slow(reply, 0.0))
    with pytest.raises(UserError, match="was not run on the same items"):
        read_runs([half, sampled])


def test_an_unfinished_or_older_run_is_named(runs: list[Path]) -> None:
    path = runs[0] / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text())
    del manifest["files"]["set"]["result"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="set is not finished; start the run again"):
        read_run(runs[0])
    records = (runs[1] / "set.jsonl").read_text().replace('"contains"', '"containment"')
    (runs[1] / "set.jsonl").write_text(records)
    with pytest.raises(UserError, match="has no contains; the run is of another version"):
        read_run(runs[1])


@pytest.mark.parametrize("figure", ["[NaN, 1.0]", '"right"', "[1.0]", "[[1.0], 1.0]"])
def test_a_damaged_figure_is_named_and_never_a_number(runs: list[Path], figure: str) -> None:
    path = runs[0] / "set.jsonl"
    path.write_text(re.sub(r'"contains": ?\[[^]]*\]', f'"contains": {figure}', path.read_text(), count=1))
    with pytest.raises(UserError, match=r"set\.jsonl: contains of item 'q0' is no figure"):
        read_run(runs[0])


def test_figures_that_only_a_study_adds_are_left_out_of_a_comparison(tmp_path: Path) -> None:
    """The rows of an ablation beside an ordinary run of the same items, in either order."""
    added = replace(FILE, items=FILE.items[:3], task=replace(FILE.task, metrics=(*FILE.task.metrics, WORDS)))
    other = replace(added, task=replace(FILE.task, metrics=FILE.task.metrics[::-1]))
    for name, file in (("row", added), ("run", replace(FILE, items=FILE.items[:3])), ("headless", other)):
        work = replace(job(tmp_path / name), identity={"name": name, "model": {}})
        run(work, [file], lambda: Slow(reply, 0.0))
    for names in (("row", "run"), ("run", "row")):
        found = compare(read_runs([tmp_path / name for name in names]), against="run").tables[0]
        assert found.metrics == tuple(metric.name for metric in FILE.task.metrics)
    assert "words" in compare(read_runs([tmp_path / "row"])).tables[0].metrics
    with pytest.raises(UserError, match=r"set: .*headless was scored by searches and .*run by contains"):
        read_runs([tmp_path / "run", tmp_path / "headless"])
