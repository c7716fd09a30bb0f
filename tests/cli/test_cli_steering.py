"""`selfrag eval run`, `sweep` and `ablate` as a person runs them: a real engine, a tiny model, files in, pages out."""

import csv
import json
import re
import sys

import pytest
from json_files import parse_table, read_json

from selfrag.common.jsonl import write_jsonl
from selfrag.evaluation.records import items_of
from selfrag.evaluation.runner import Model
from selfrag.experiments.ablations import PUBLISHED

PASSAGES = [
    {"id": f"p{i}", "title": "Book", "text": f"Text {i} by Ann."} for i in range(3)
]
SHORT = {"task": "short_qa", "answers": ["Ann", "a"], "gold_passage_ids": ["p1"]}
CLOSED = json.loads("""{"task": "fact_verification",
 "answers": ["true"],
 "label": "true",
 "options": ["true", "false"]}""")
ASQA = dict(
    parse_table("""
answer | Ann wrote it.
qa_pairs | [{"question": "Who?", "short_answers": ["Ann", "A."]}]
docs | [{"id": "d1", "title": "Book", "text": "Ann wrote it."}, {"id": "d2", "title": "", "text": "Or Bo."}]
""")
)


@pytest.fixture
def files(tmp_path):
    """Short questions, claims, and rows of ASQA."""
    shown = {"passages": PASSAGES}
    short = (
        {"id": f"q{i}", "instruction": f"Who wrote book {i}?"} | SHORT | shown
        for i in range(6)
    )
    claims = (
        {"id": str(i), "instruction": f"Is it so?\n\n## Input:\n\nClaim {i}"}
        | CLOSED
        | shown
        for i in range(4)
    )
    asked = (
        {"sample_id": f"a{i}", "question": f"Who wrote book {i}?", **ASQA}
        for i in range(2)
    )
    names = "short.jsonl closed.jsonl any-name.json".split()
    for name, rows in zip(names, (short, claims, asked), strict=True):
        write_jsonl(tmp_path / name, rows)
    return [f"{tmp_path}/{name}" for name in names]


@pytest.mark.engine
def test_files_and_published_tasks_in_one_run(tiny_llama, files, tmp_path, command):
    pytest.importorskip("rouge_score")
    short, _, asqa = files
    runs = tmp_path / "runs"
    line = f"selfrag eval run {short} asqa/official={asqa} --model={tiny_llama}"
    line += f" --engine=transformers --out={runs} --set=segment_tokens=12"
    line += " --system=selfrag --system=selfrag-never --against=selfrag"
    out, _ = command(line)
    for heading in ("short (short, 6 items)", "asqa (long, 2 items)"):
        assert heading in out
    assert not re.search(r"\bnan\b", out)
    manifest = read_json(runs / "selfrag/manifest.json")
    assert manifest["identity"]["system"]["decoding"]["accumulate"] == "mean"
    published = manifest["files"]["asqa"]["settings"]
    assert published["task"]["preset"] == "asqa/official"
    decoding = {"mode": "always", "accumulate": "product", "segment_tokens": 12}
    assert published["system"]["decoding"].items() >= decoding.items()
    assert "system" not in manifest["files"]["short"]["settings"]
    never = read_json(runs / "selfrag-never/manifest.json")["files"]["asqa"]["settings"]
    decoding |= {"mode": "never"}  # the mode is in its name
    assert never["system"]["decoding"].items() >= decoding.items()
    asked = [item.query for item in items_of(runs / "selfrag", "asqa").values()]
    assert asked == ["Who wrote book 0?", "Who wrote book 1?"]

    log = runs / "selfrag/asqa.log.jsonl"
    before = log.read_bytes()
    assert command(line)[0] == out
    assert log.read_bytes() == before  # nothing is answered again
    _, err = command(f"{line} --set=beam=1", code=2)
    assert "other system" in err


def test_issue_19_a_metric_without_its_package_is_said_before_the_model(
    tiny_llama, files, tmp_path, command, monkeypatch
):
    # As where it is not installed.
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    line = f"selfrag eval run asqa={files[2]} --model {tiny_llama} -o {tmp_path}/runs"
    _, err = command(line, code=2)
    assert re.search(r"rouge_score.rouge_scorer is not installed; .*eval", err)


@pytest.mark.engine
def test_a_sweep_decodes_once_and_goes_on_without_the_model(
    tiny_llama, files, tmp_path, command, monkeypatch
):
    pytest.importorskip("matplotlib")
    study = tmp_path / "study"
    short, closed, _ = files
    model = f"--out={study} --model={tiny_llama} --engine=transformers --set=passages=2"
    options = "--axis=threshold=0,0.5,1 --best='headline,retrieval_rate<=0.5'"
    out, _ = command(f"selfrag sweep {short} {closed} {model} {options}")
    assert "4 settings, 40 answers: 40 replayed" in out  # 4 settings, 10 items
    assert "goal contains,retrieval_rate<=0.5: " in out
    page = (study / "sweep.md").read_text()
    for text in (
        "base policy weights isrel=1,issup=1,isuse=0.5, passages=2.|40 answers: 40 replayed|threshold=1 |"
        "goal contains,retrieval_rate<=0.5: |![short-threshold](plots/short-threshold.svg)"
    ).split("|"):
        assert text in page
    for name in ("short-threshold.svg", "closed-threshold.png"):
        assert (study / "plots" / name).is_file()
    rows = csv.DictReader((study / "sweep.csv").read_text().splitlines())
    systems = {row["system"] for row in rows}
    assert systems == set("base threshold=0 threshold=0.5 threshold=1".split())
    result = read_json(study / "sweep.json")
    assert {"commit", "versions", "time"} < set(result)
    assert result["choices"]["closed"]["goal"] == "accuracy,retrieval_rate<=0.5"
    assert result["saved"]["answers"] == {"replayed": 40, "decoded": 0}
    assert result["files"]["short"]["items"] == 6
    assert result["settings"]["closed"]["threshold=1"]["threshold"] == 1
    series = [[at, f"threshold={at:g}"] for at in (0, 0.5, 1)]
    assert result["series"]["short"]["threshold"] == series
    manifest = read_json(study / "settings/threshold=1/manifest.json")
    assert manifest["identity"]["system"]["decoding"]["threshold"] == 1

    # Everything is recorded: the model is not loaded again.
    monkeypatch.setattr(Model, "load", lambda *_: pytest.fail("loaded"))
    options = "--axis=threshold=0,1 --axis=isrel=0,2 --best=none"
    out, _ = command(f"selfrag sweep {closed} {model} {options}")
    assert "20 replayed" in out


@pytest.mark.engine
def test_an_ablation_prints_the_published_rows_beside_ours(
    tiny_llama, files, tmp_path, command
):
    study = tmp_path / "study"
    short, closed, _ = files
    line = f"selfrag ablate {short} {closed} --out={study} --model={tiny_llama}"
    line += " --engine=transformers --set=passages=2 --limit=3"
    command(f"{line} --no-critic=/nowhere", code=2)
    assert not study.exists()
    out, _ = command(f"{line} --no-retriever={tiny_llama} --no-critic={tiny_llama}")
    dash = "\N{EN DASH}"
    assert re.search(rf"^no-critic, short, {dash}, ", out, re.M)
    assert "right answers that no passage holds" in out
    assert re.search(r"^no-retrieval, short, \d of 3, ", out, re.M)
    page = (study / "ablation.md").read_text()
    # No folder of this machine on a page.
    assert f"Model {tiny_llama.name}, base policy weights" in page
    for name in (*PUBLISHED, "official", "always", "forbid-unsupported"):
        assert f"| {name} |" in page
    assert "short: Published figure of selfrag-3a left out: it is of popqa, " in page
    assert "published difference" not in page
    assert "-20.8" not in page
    policy = "weights isrel=1,issup=1,isuse=0.5, mode=never, passages=2"
    assert f"- no-retrieval: {policy}\n" in page
    rows = (study / "rows/no-retrieval/short.jsonl").read_text().splitlines()
    assert [json.loads(row)["read"] for row in rows] == [[], [], []]
    result = read_json(study / "ablation.json")
    assert result["settings"]["short"]["official"]["retrieve_test"] == "log_ratio"
    _, err = command(f"{line} --baseline={study}/rows/always", code=2)
    assert "'always'" in err
    _, err = command(f"{line} --limit=2", code=2)
    assert "holds a run with other" in err
