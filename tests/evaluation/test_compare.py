"""The comparison: bootstrap and pairing by hand, tables of real runs; exports that the other tools read."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from json_files import read_json, write_json
from refusals import refused
from scripted_run import FILE, Slow, job, reply

from selfrag.evaluation.comparison import (
    OVER_ITEMS,
    OVER_SEEDS,
    average,
    bootstrap,
    compare,
    mean_of_runs,
    read_run,
    read_runs,
)
from selfrag.evaluation.metrics.registry import METRICS
from selfrag.evaluation.paraphrases import paraphrased
from selfrag.evaluation.records import read_manifest
from selfrag.evaluation.runner import Source, run
from selfrag.evaluation.tables import csv_text, markdown
from selfrag.evaluation.task import BIOGRAPHY

FEW = replace(FILE, items=FILE.items[:3])


def means(*values):
    return [(value, 1.0) for value in values]


def test_figures_are_sums_over_sums_and_items_without_a_part_do_not_count():
    plain, pooled, none = bootstrap(
        [[*means(1, 0), None], [(2.0, 4.0), (0.0, 0.0), (1.0, 2.0)], [None] * 3]
    )
    assert plain.value == 0.5
    assert plain.n == 2
    assert pooled.value == 0.5
    assert pooled.n == 2
    assert none is None
    assert bootstrap([[(0.0, 0.0)]]) == [None]
    with pytest.raises(ValueError, match="different numbers"):
        bootstrap([means(1), means(1, 2)])


def test_pairing_finds_what_two_separate_intervals_hide():
    """Better on 10 of 100 items and worse on none: the intervals overlap, the paired difference is above 0."""
    worse = [i % 2 for i in range(100)]
    better = [1 if i < 20 else right for i, right in enumerate(worse)]
    one, other = bootstrap([means(*better), means(*worse)])
    assert one.estimate.low < other.estimate.high
    difference = (one - other).estimate
    assert difference.value == pytest.approx(0.1)
    assert 0.0 < difference.low < 0.1 < difference.high < 0.2


def test_the_average_is_plain_and_its_files_are_drawn_apart():
    (large,) = bootstrap([means(*[1.0, 0.0] * 200)], name="large")
    (small,) = bootstrap([means(*[1.0, 1.0, 1.0, 0.0] * 5)], name="small")
    found = average([large, small])
    assert found.value == pytest.approx((0.5 + 0.75) / 2)
    assert abs(np.corrcoef(large.samples, small.samples)[0, 1]) < 0.1
    width = (large.samples.std() ** 2 + small.samples.std() ** 2) ** 0.5 / 2
    assert found.samples.std() == pytest.approx(width, rel=0.1)
    assert average([large, None]) is average([]) is None


def test_tables_of_two_systems(runs, tmp_path):
    found = compare(read_runs(runs), against="finetuned")
    table = found.tables[0]
    told = [(t.name, t.kind, t.items) for t in found.tables]
    assert told == [("short", "short", 8), ("long", "long", 3)]
    high, low = table.rows
    # Four of eight questions are even; the other system is always right.
    assert low.figures["contains"].value == 0.5
    assert high.figures["contains"].value == 1.0
    difference = high.differences["contains"]
    assert difference.value == pytest.approx(0.5)
    assert difference.low > 0.1
    assert low.differences == {}
    assert low.failed == 1
    assert high.failed == 0
    assert "failed: " in str(table.notes)
    assert "Items that failed count as wrong" in table.notes
    assert high.figures["citation_precision"].value == 1.0  # the better passage is gold
    assert high.differences["retrieval_rate"].value == 0.0
    effort = ("prompt_tokens", "generated_tokens", "computed_tokens")
    prompt, new, computed = [low.figures[name].value for name in effort]
    cached = read_manifest(runs[1])["files"]["short"]["result"]["cached_tokens"]
    assert 7 * (prompt + new) - cached == pytest.approx(8 * computed)  # one failed
    first, second = (one.rows[0].figures for one in found.tables)
    both = (first["contains"].value + second["long_form"].value) / 2
    assert found.average.rows[0].figures["score"].value == pytest.approx(both)
    # A headline that counts is not averaged with shares, and nothing is cited where there is nothing to cite.
    files = [FILE, replace(FEW, name="texts", task=BIOGRAPHY)]
    run(job(tmp_path), files, lambda: Slow(reply, 0.0))
    found = compare(read_runs([tmp_path]))
    assert found.average.rows[0].figures["score"].value == pytest.approx(1 / 3)
    assert found.average.notes == ("score is the mean of contains of set",)
    table = found.tables[0]
    assert "60 of 60 items came without passages" in str(table.notes)
    assert table.rows[0].figures["citation_precision"] is None


def test_answers_that_nobody_could_judge_are_counted(runs, tmp_path):
    """Evaluation showed cited answers without a judgment as any other."""
    folder = tmp_path / runs[0].name
    shutil.copytree(runs[0], folder)
    path = folder / "short.jsonl"
    lines = list(map(json.loads, path.read_text().splitlines()))
    for line in lines[:2]:
        line["note"] = "segment 1 is not judged: no log-probabilities"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (table, *_) = compare(read_runs([folder])).tables
    said = "2 answers with a note, such as: segment 1 is not judged: no log-prob"
    assert [note for note in table.notes if said in note]


def test_every_rendering_holds_every_system_and_no_nan(runs):
    found = compare(read_runs(runs), against="finetuned")
    text = markdown(found)
    assert "### Average over 2 files" in text
    assert "### short (short, 8 items)" in text
    assert re.search(
        r"\| reflective \| 100\.0 \[63\.1, 100\.0\] \| \+50\.0 \[\d+\.\d, \d+\.\d\] \* \|",
        text,
    )
    rows = {
        (r["file"], r["system"], r["metric"]): r
        for r in csv.DictReader(io.StringIO(csv_text(found)))
    }
    computed = [
        float(rows["short", name, "computed_tokens"]["value"])
        for name in ("reflective", "finetuned")
    ]
    assert f"| {computed[0]:.1f} | {computed[0] / computed[1]:.2f} |" in text
    assert f"| {computed[1]:.1f} | 1.00 |" in text
    row = rows["short", "reflective", "contains"]
    wanted = {"value": "1", "n": "8", "against": "finetuned", "difference_value": "0.5"}
    assert row.items() >= wanted.items()
    assert rows["short", "finetuned", "failed"]["value"] == "1"
    for rendering in (text, csv_text(found)):
        assert not re.search(r"\b([nN]a[nN]|None)\b", rendering)


def few(folder, file=FEW, **options):
    """A run of three items."""
    work = replace(job(folder, **options), identity={"name": folder.name})
    run(work, [file], lambda: Slow(reply, 0.0))
    return folder


def test_runs_that_cannot_be_compared(runs, tmp_path):
    assert list(read_runs(runs, ["long"])[0].files) == ["long"]
    half = few(tmp_path / "half")
    limited = few(tmp_path / "limited", settings={"limit": 3})
    for folders, message in (
        ([], "no run to compare"),
        ([runs[0], runs[0]], "both called reflective"),
        ([runs[0], half], "is not in both"),
        ([half, limited], "was not run on the same items"),
    ):
        with refused(message):
            read_runs(folders)


def test_an_unfinished_an_older_and_a_damaged_run_is_named(tmp_path):
    path = few(tmp_path / "run") / "set.jsonl"
    text = path.read_text()
    for figure in ("[NaN, 1.0]", '"right"', "[1.0]", "[[1.0], 1.0]"):
        path.write_text(
            re.sub(r'"contains": ?\[[^]]*\]', f'"contains": {figure}', text, count=1)
        )
        with refused(r"set\.jsonl: contains of item 'q0'"):
            read_run(path.parent)
    path.write_text(text.replace('"contains"', '"containment"'))
    with refused("no contains; "):
        read_run(path.parent)
    manifest = read_json(path.parent / "manifest.json")
    del manifest["files"]["set"]["result"]
    write_json(path.parent / "manifest.json", manifest)
    with refused("set is not finished"):
        read_run(path.parent)


def test_figures_that_only_a_study_adds_are_left_out_of_a_comparison(tmp_path):
    """The rows of an ablation beside an ordinary run of the same items, in either order."""
    metrics = FILE.task.metrics
    plain = few(tmp_path / "run")

    def measuring(*metrics):
        return replace(FEW, task=replace(FILE.task, metrics=metrics))

    added = few(tmp_path / "row", measuring(*metrics, METRICS["words"]))
    headless = few(tmp_path / "headless", measuring(*metrics[::-1]))
    for folders in ((plain, added), (added, plain)):
        found = compare(read_runs(folders), against="run").tables[0]
        names = [metric.name for metric in metrics]
        assert found.metrics == (*names, "computed_tokens")
    assert "words" in compare(read_runs([added])).tables[0].metrics
    with refused(r"set: .*headless .*searches .*run .*contains"):
        read_runs([plain, headless])


def test_an_interval_over_seeds_and_items_is_as_wide_as_both_say():
    """Variances add: 4 runs that differ by .2 on 400 items; over items alone the spread of the runs does not count."""
    draw = np.random.default_rng(0)
    rates = (0.3, 0.5, 0.5, 0.7)
    runs = bootstrap(
        [means(*draw.binomial(1, rate, 400).astype(float)) for rate in rates]
    )
    over_items = mean_of_runs(runs, resampled=False)
    over_both = mean_of_runs(runs)
    values = [run.value for run in runs]
    assert over_items.value == over_both.value == pytest.approx(np.mean(values))
    between = np.var(values, ddof=1) / 4
    within = over_items.samples.var()
    assert over_both.samples.var() == pytest.approx(between + within, rel=0.1)
    assert within < between / 10
    assert mean_of_runs(runs[:1]).estimate == runs[0].estimate
    assert mean_of_runs([*runs, None]) is None


def test_a_report_over_seeds_has_two_rows_more(runs):
    table = compare(read_runs(runs), seeds=True, against="finetuned").tables[0]
    items, both = table.rows[-2:]
    assert items.system == OVER_ITEMS
    assert both.system == OVER_SEEDS
    assert items.differences == both.differences == {}
    assert items.figures["contains"].value == both.figures["contains"].value
    assert len(table.rows) == len(runs) + 2


def test_wordings_of_a_question_are_one_item(tmp_path):
    """What agrees on all wordings of a question is no more certain for being asked five times."""
    rows = paraphrased(FEW.items, 5)
    assert [row.id for row in rows[:3]] == ["q0", "q0~2", "q0~3"]
    assert len({row.instruction for row in rows}) == 5 * len(FEW.items)
    assert Source([FILE.path], paraphrases=2).settings() == {"paraphrases": 2}
    asked = replace(FEW.items[0], query="Who?", instruction="Say.\n\nWho?\nA: x")
    worded = paraphrased([asked], 2)[1]
    assert worded.instruction == "Say.\n\nPlease answer: Who?\nA: x"
    assert worded.query == "Please answer: Who?"
    once = read_run(few(tmp_path / "once")).files["set"]
    settings = {"paraphrases": 5}
    often = few(tmp_path / "often", replace(FEW, items=rows), settings=settings)
    together = read_run(often).files["set"]
    assert together.ids == once.ids
    assert together.scores["contains"] == ((5.0, 5.0), (0.0, 5.0), (0.0, 5.0))
    often, once = (
        compare(read_runs([tmp_path / name])).tables[0].rows[0].figures["contains"]
        for name in ("often", "once")
    )
    assert often == once
