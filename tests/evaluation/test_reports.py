"""Reports of runs: tables, page, plots and the annotation form; texts of others stay texts."""

import json
import re
import shlex
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import browsing
import pytest
import reported
from json_files import read_json, read_lines, write_json, write_lines
from refusals import refused
from structure import Structure

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.evaluation.comparison import (
    Comparison,
    ComparisonRow,
    ComparisonTable,
    read_runs,
)
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.registry import COMPUTED
from selfrag.evaluation.report import (
    CaseFile,
    ItemCase,
    Report,
    SystemOutcome,
    draw_tables,
    parts,
    read_cases,
    read_report,
    render,
    spoken,
    write_report,
)
from selfrag.render.figures import encoded, save

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/reports.md").read_text()
TAGS = """html head meta title style body a header h1 h2 h3 h4 p ul ol li span bdi nav main section div table caption
    thead tbody tr th td svg g text rect path fieldset legend label input article details summary pre strong img"""
ATTRIBUTES = """lang charset http-equiv content name class href id scope tabindex role aria-label aria-labelledby alt
    src width height x y d fill stroke stroke-width rx xmlns font-family font-size font-weight dir type checked"""

browser = browsing.browser


def test_a_directory_of_runs_is_enough_and_prints_the_columns_that_matter(runs, capsys):
    line = f"eval report {runs[0].parent} --only short --against finetuned"
    assert main(line.split()) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\[\d+\.\d, 100\.0\]", shown)
    assert "long (" not in shown
    assert "recall" in shown
    assert "searches" not in shown


def test_what_cannot_be_done_is_one_line(runs, tmp_path, refusal):
    ours, other = runs
    for words, said in (
        (f"{tmp_path}/none", "manifest.json"),
        (f"{ours} {other} --against ours", "'ours'"),
        (f"{ours} {other} --only third", "third; it has short, long"),
        (f"{ours} -o /proc/none/page.html", "cannot write"),
    ):
        assert said in refusal(f"selfrag eval report {words}")


@pytest.fixture
def copied(runs, tmp_path):
    """The same runs, free to be damaged; their manifests name the data files of the first ones."""
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in runs]


def test_failed_items_come_first_and_the_rest_is_a_seeded_sample(runs):
    found = read_runs(runs)
    (short, long), again = read_cases(found, 3, seed=1), read_cases(found, 3, seed=1)
    assert [case.id for case in short.cases] == [case.id for case in again[0].cases]
    assert len(short.cases) == 3
    assert short.items == 8
    assert len(long.cases) == 3
    assert long.items == 3
    ours, other = next(case for case in short.cases if case.id == "short_qa-5").outcomes
    assert ours.output.text == "Paris."
    assert ours.output.segments == (("Paris.", "d1"),)
    assert ours.share == 1.0
    assert ours.trace.question == "Question 5?"
    assert "no memory left" in str(other.error)
    assert other.output.text == ""
    assert other.share == 0.0
    assert other.trace is None
    with refused("-1 items; 0 or more"):
        read_cases(found, -1)


def test_a_data_file_that_is_gone_or_changed_is_said(copied):
    manifest = read_json(copied[0] / "manifest.json")
    before = Path(manifest["files"]["short"]["path"])
    path = copied[0].parent / before.name
    manifest["files"]["short"]["path"] = str(path)
    write_json(copied[0] / "manifest.json", manifest)
    for said in ("is not there; say where it is now with --data", "has changed since"):
        short, long = read_cases(read_runs(copied), 2)
        assert said in str(short.note)
        assert long.note is None
        assert all(case.item is None for case in short.cases)
        path.write_text("{}\n")
    moved = read_cases(read_runs(copied), 2, data=before.parent)[0]
    assert moved.note is None
    assert all(case.item is not None for case in moved.cases)


def test_a_damaged_trace_spoils_only_itself(copied):
    path = copied[0] / "short.jsonl"
    records = read_lines(path)
    records[0]["trace"] = {"question": "Q"}
    write_lines(path, records)
    first, second = [
        case.outcomes[0] for case in read_cases(read_runs(copied), 99)[0].cases
    ][:2]
    assert first.trace is None
    assert "no trace in JSON" in str(first.damage)
    assert second.trace.question == "Question 1?"
    records[2]["read"] = 3
    write_lines(path, records)
    with refused(r"short\.jsonl:3: .*'short_qa-2'"):
        read_cases(read_runs(copied), 99)


# The page


def outcome(system="ours", share=1.0, **changes):
    answer = {
        "text": "Paris.",
        "segments": (("Paris.", "d1"),),
        "read": ("d1",),
        "usage": {"searches": 2},
        "abstained": False,
        "reason": None,
    }
    output = Output(**{key: changes.pop(key, value) for key, value in answer.items()})
    return replace(
        SystemOutcome(system, output, None, {"contains": (share, 1.0)}, None), **changes
    )


MANIFEST = """
{"identity": {"engine": "@", "model": {"model.safetensors@": "@"}, "system": {"kind": "@"}},
 "about": {"commit": "c@", "time": "@", "versions": {"v@": "@"}},
 "files": {"file@": {"settings": {
  "task": {"kind": "short@"}, "items": 1, "rows": 2, "sha256": "ab@", "limit": "@"}}}}
"""


def hostile_page(text):
    """A report with `text` wherever others can write."""
    scores = {f"m{text}": (1.0, 1.0)}
    made = {"trace": reported.hostile(text), "usage": {f"u{text}": 3}, "scores": scores}
    traced = outcome(f"s{text}", text=text, **made)
    bare = {"text": text, "error": text, "damage": text, "read": (text,)}
    bare = outcome(f"t{text}", segments=((text, text),), **bare)
    passages = (Passage(f"d1{text}", f"Text.{text}", f"Title{text}"),)
    gold = (f"gold{text}",)
    ids = frozenset({f"d1{text}"})
    item = Item(f"q{text}", f"Ask{text}", passages, ids, gold, references=gold)
    manifest = json.loads(MANIFEST.replace("@", json.dumps(text)[1:-1]))
    row = ComparisonRow(f"s{text}", {"contains": None}, {}, None, 0)
    table = ComparisonTable(f"f{text}", text, ("contains",), 1, (row,), (text,))
    cases = (ItemCase(f"q{text}", item, (traced, bare)),)
    file = CaseFile(f"file{text}", cases, 9, text or None)
    comparison = Comparison(None, (table,), None)
    report = Report(comparison, {f"s{text}": manifest}, (file,), 3)
    return Structure(render(report))


def check(found):
    found.check_inert(TAGS, ATTRIBUTES)
    assert not found.unseen()
    for value in found.values("src"):
        assert str(value).startswith("data:image/svg+xml;base64,")
    found.text().encode()


@pytest.mark.parametrize("name", sorted(reported.HOSTILE))
def test_hostile_text_is_text(name):
    check(hostile_page(reported.HOSTILE[name]))


def test_the_report_of_real_runs(runs):
    found = Structure(render(read_report(runs, against="finetuned")))
    check(found)
    for part in ("Average over 2 files", "long (long, 3 items)", " failed: ",
                 "Question 0?", "gold: Paris", "Text of d1 <b>& so on</b>.", "no memory left",
                 "model.safetensors abcdefabcdef", "At the start: retrieve", "After candidate 0: retrieve",
                 "0.900",  # the likelihood of what the better passage led to
                 "Fully supported 0.80"):  # fmt: skip
        assert part in found.text(), part
    pictures = [dict(attrs) for tag, attrs in found.tags if tag == "img"]
    assert len(pictures) == 3
    assert re.search(
        r"contains of reflective 100\.0 .*; finetuned 50\.0 \[", str(pictures[1]["alt"])
    )
    found.check_heard()


def test_what_is_not_at_hand_is_said():
    text = Structure(
        parts().article(ItemCase("q", None, (outcome(read=("d1", "d2")),)), "item")
    ).text()
    assert "not at hand" in text
    assert "was shown: d1, d2" in text
    right, wrong = outcome("a"), outcome("b", 0.0, error="gone")
    declined = outcome("c", 0.0, text="No.", abstained=True, reason="guardrail")
    for outcomes, kinds in (
        ((right,), {"right"}),
        ((right, wrong), {"wrong", "differ", "failed"}),
        ((right, declined), {"wrong", "differ", "abstained"}),
    ):
        assert ItemCase("q", None, outcomes).kinds == {"all", *kinds}
    assert "abstained: guardrail" in Structure(parts().answer(declined, "a", "")).text()


def test_it_asks_for_nothing_unfolds_and_leads_to_its_sliders(browser, runs, tmp_path):
    report = read_report(runs, against="finetuned")
    file = write_report(report, tmp_path / "a report.html")
    page, seen = browsing.opened(browser, file, viewport={"width": 400, "height": 700})
    assert [
        url for url in seen["requests"] if not url.startswith("data:image/svg+xml")
    ] == [file.as_uri()]
    assert seen["dialogs"] == seen["errors"] == []
    moved = page.evaluate("""() => {
        const box = document.querySelector('.results .scroll'), name = box.querySelector('tbody th')
        const before = name.getBoundingClientRect().left
        box.scrollLeft = 200
        return [box.scrollLeft, name.getBoundingClientRect().left - before]
    }""")
    assert moved[0] > 100  # a wide table scrolls, and the names of the systems stay
    assert abs(moved[1]) < 1
    drawn = page.evaluate(
        "[...document.images].map(image => image.complete && image.naturalWidth > 100)"
    )
    assert drawn == [True] * 3
    answer = page.locator("#item-0-0-0")
    segment, tree = answer.locator("table").first, answer.locator("svg").first
    assert not segment.is_visible()
    answer.locator("summary").first.click()
    assert segment.is_visible()
    answer.locator("summary", has_text="the search").click()
    assert answer.get_by_text("At the start: retrieve").is_visible()
    assert not tree.is_visible()
    answer.locator("summary", has_text="the tree").click()
    assert tree.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    answer.get_by_role("link", name="rank it again under other weights").click()
    page.wait_for_selector("#view:not([hidden])")
    first = report.files[0].cases[0]
    assert page.locator("#asked").inner_text() == first.question
    assert first.outcomes[0].output.text in page.locator("#answer").inner_text()
    page.evaluate("location.hash = 'item-0-1-0'")
    page.get_by_text(report.files[0].cases[1].question).first.wait_for()
    page.evaluate("location.hash = '__proto__'")
    page.get_by_text("this page holds no such answer").wait_for()
    assert seen["errors"] == []


# Plots


def table(*names, head="contains"):
    def row(place, name):
        value = (0.2, 0.5, 0.4)[place]
        figures = {
            head: Estimate(value, value - 0.1, value + 0.1, 9),
            "retrieval_rate": Estimate(place / 10, 0.0, 1.0, 9),
            "prompt_tokens": Estimate(100.0 * (place + 1), 90.0, 900.0, 9),
            "generated_tokens": Estimate(10.0, 9.0, 11.0, 9),
        }
        return ComparisonRow(name, figures, {}, 0.5, 0)

    metrics = (head, "retrieval_rate", "prompt_tokens", "generated_tokens")
    return ComparisonTable(
        "set", "short", metrics, 9, tuple(row(i, name) for i, name in enumerate(names))
    )


def test_the_panels_hold_the_figures():
    shown = table("a", "b", "c")
    assert spoken(shown).startswith(
        "set (short, 9 items): contains of a 20.0 [10.0, 30.0]; b 50.0 [40.0, 60.0]"
    )
    scores, tokens, _ = draw_tables([shown]).axes
    assert [label.get_text() for label in scores.get_yticklabels()] == [
        "1  a",
        "2  b",
        "3  c",
    ]
    assert scores.get_xlabel() == "contains, % with 95% interval"
    assert [bar.lines[0].get_xdata()[0] for bar in scores.containers] == pytest.approx(
        [20, 50, 40]
    )
    lines = [bar.lines[0] for bar in tokens.containers]
    assert [line.get_xdata()[0] for line in lines] == pytest.approx([110, 210, 310])
    assert [line.get_ydata()[0] for line in lines] == pytest.approx([20, 50, 40])
    (front,) = [line for line in tokens.lines if line.get_linestyle() == "--"]
    # c costs more than b and is worse
    assert list(front.get_xdata()) == pytest.approx([110, 210])
    score, computed = Estimate(0.5, 0.4, 0.6, 9), Estimate(70.0, 60.0, 80.0, 9)
    row = ComparisonRow("a", {"score": score, COMPUTED: computed}, {}, None, 0)
    average = ComparisonTable("average", "average", ("score", COMPUTED), 2, (row,))
    _, tokens, _ = draw_tables([average]).axes
    assert tokens.get_xlabel() == "computed tokens an item"
    assert tokens.containers[0].lines[0].get_xdata()[0] == 70
    row = ComparisonRow("a", {"contains": None}, {}, 0.5, 0)
    with refused("nothing to draw"):
        draw_tables([ComparisonTable("set", "short", ("contains",), 9, (row,))])


def test_names_of_others_are_only_text():
    text = (
        "$\\frac{1}{$ <b>&</b> \ud83d\u202e\x1b[31m\n\u0645 "
        + reported.HOSTILE["closing"]
    )
    drawn = encoded(draw_tables([table(text, "b", head=text)]), ".svg").decode()
    root = ElementTree.fromstring(drawn)
    assert "$\\frac{1}{$ <b>&</b>" in "".join(root.itertext())
    assert not root.findall(".//{http://www.w3.org/2000/svg}script")
    assert "\u202e" not in drawn


def test_a_plot_is_written_whole_and_the_same_each_time(tmp_path):
    drawn = draw_tables([table("a", "b")])
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        paths = [save(drawn, tmp_path / f"{i}{ending}") for i in range(2)]
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 4
    for name, said in (
        ("x.gif", r"a plot ends in \.png, \.svg, \.pdf"),
        ("none/x.svg", "cannot write"),
    ):
        with refused(said):
            save(drawn, tmp_path / name)


def test_the_examples_of_the_guide_run(runs, tmp_path, monkeypatch, capsys):
    for run, name in zip(runs, ("selfrag-adaptive", "rag-1"), strict=True):
        made = Path(shutil.copytree(run, tmp_path / "runs" / name))
        manifest = (made / "manifest.json").read_text()
        (made / "manifest.json").write_text(
            re.sub(r'"name": ?"\w+"', f'"name": "{name}"', manifest, count=1)
        )
    monkeypatch.chdir(tmp_path)
    lines = "".join(
        re.findall(r"^```bash\n(.*?)^```", GUIDE, flags=re.M | re.S)
    ).splitlines()
    assert len(lines) == 2
    for program, *words in map(shlex.split, lines):
        assert program == "selfrag", words
        assert main(words) == 0, words
    capsys.readouterr()
    code = "".join(re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.M | re.S))
    # the point of this test
    exec(
        compile(code, "reports.md", "exec", dont_inherit=True), {"__name__": "__docs__"}
    )
    assert len(capsys.readouterr().out.splitlines()) == 4
    made = {path.name for path in tmp_path.iterdir()}
    assert made >= set("report.html tables.md tables.csv plots.svg plots.png".split())
