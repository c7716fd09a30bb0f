"""Judges asked about runs: real run directories, figures by hand, and tables that show who judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_run import Slow, data_file, job
from tiny_judges import Ruled
from written import PROMPTING

from retrieval.atomic import locked_directory
from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.decoding.requests import Generate
from selfrag.engines.scripted import Reply
from selfrag.evaluation.baselines import FineTuned
from selfrag.evaluation.comparison import compare, read_runs
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.judging import (
    CITATIONS,
    Judged,
    Judges,
    Load,
    Record,
    families,
    judge_citations,
    judge_run,
    read_judged,
    write_judged,
)
from selfrag.evaluation.metrics.citations import as_list_for
from selfrag.evaluation.runner import run
from selfrag.evaluation.tables import csv_text, markdown
from selfrag.evaluation.task_files import TaskFile, read_task

PASSAGES = (Passage("good", "The answer is Paris.", "France"), Passage("bad", "It rained.", ""))


def last_word(**identity: object) -> Ruled:
    """Entailed is what ends in a word of the premise; `?` gives no verdict."""

    def rule(known: str, said: str) -> bool | None:
        return None if "?" in said else said.split()[-1].strip(".") in known

    return Ruled(rule, "last word", **identity)


def record(text: str, cited: str | None, **fields: object) -> Record:
    item = Item(f"q{abs(hash((text, cited))) % 10**6}", "Where is", True, PASSAGES, **fields)
    output = Output(text, (cited,) if cited else (), segments=((text, cited),))
    return Record(item, output, {one.id: one for one in PASSAGES})


def test_citations_of_long_short_and_listed_answers() -> None:
    judge = last_word()
    records = [record("In Paris. In Rome.", "good"), record("In Paris.", "bad"), record("In Paris.", None)]
    found = judge_citations(records, judge, kind="long")
    for name in ("recall", "precision"):
        assert list(found.parts[f"citation_{name}_nli"].values()) == [(0.5, 1.0), (0.0, 1.0), (0.0, 1.0)]
    assert ("Title: France\nThe answer is Paris.", "In Paris.") in judge.asked
    judge_citations([record("Paris", "good")], judge, kind="short")
    assert judge.asked[-1][1] == "Where is Paris"
    judge_citations([record("Rome, Paris.", "good")], judge, kind="list")
    assert [said for _, said in judge.asked[-2:]] == ["Where is Rome", "Where is Paris"]
    assert as_list_for("Q")(" , ") == []


def test_what_is_left_out_and_what_counts_as_nothing() -> None:
    closed = record("B", "good", label="B", options=("x", "y"))
    records = [record("Why?", "good"), record("", None), closed, replace(record("x", None), output=None)]
    found = judge_citations(records, last_word(), kind="long")
    assert list(found.parts["citation_f1_nli"].values()) == [None, (0.0, 1.0), None, (0.0, 1.0)]
    assert found.undecided == dict.fromkeys(found.parts, 1)


def known(data: TaskFile) -> Load:
    return lambda *_: {one.id: one for one in data.items}


def writes(text: str) -> Callable[[Generate], Reply]:
    return lambda request: Reply((*PROMPTING.codec.encode(text), 0))


@pytest.fixture
def data(tmp_path: Path) -> TaskFile:
    """Four questions in a real file."""
    row = {"task": "short_qa", "answers": ["Paris"], "gold_passage_ids": ["good"]}
    row["passages"] = [one.as_dict() for one in PASSAGES]
    asked = ("Where is", "Where is", "Where is", "Where is it?")
    rows = [{"id": f"q{at}", "instruction": text, **row} for at, text in enumerate(asked)]
    return read_task(data_file(tmp_path, *rows, name="places.jsonl"))


@pytest.fixture
def runs(tmp_path: Path, data: TaskFile) -> list[Path]:
    """One system that is right and cites a passage that says so, one that is wrong."""
    folders = []
    for name, text in (("right", "Paris"), ("wrong", "Rome")):
        work = replace(job(tmp_path / name), system=FineTuned(PROMPTING, 1), identity={"name": name, "model": {}})
        run(work, [data], lambda text=text: Slow(writes(text), 0.0))  # type: ignore[misc]
        folders.append(work.folder)
    return folders


def test_figures_of_a_judge_join_those_of_the_run(runs: list[Path], data: TaskFile) -> None:
    before = (runs[0] / "places.jsonl").read_bytes()
    judge = last_word()
    for folder in runs:
        judge_run(folder, known(data), Judges(judge))
    assert (runs[0] / "places.jsonl").read_bytes() == before
    assert len(judge.asked) == 4  # two questions, two systems: equal pairs are asked once
    table = compare(read_runs(runs), against="wrong").tables[0]
    column = "citation_recall_nli (last word)"
    assert column in table.metrics
    right, wrong = (row.figures[column] for row in table.rows)
    assert (right.value, right.n, wrong.value) == (1.0, 3, 0.0)  # one verdict is missing
    assert table.rows[0].differences[column].value == 1.0
    assert f"right: 1 items have no {column}, as a verdict is missing" in table.notes
    for text in (markdown(compare(read_runs(runs))), csv_text(compare(read_runs(runs)))):
        assert column in text
        assert "nan" not in text.lower()


def test_two_judges_of_one_name_are_not_compared(runs: list[Path], data: TaskFile) -> None:
    load = known(data)
    other = last_word(files={"model.safetensors": "abc"})
    for folder, judge in zip(runs, (last_word(), other), strict=True):
        judge_run(folder, load, Judges(judge))
    with pytest.raises(UserError, match=r"places: citation_f1_nli \(last word\) in .*wrong is of another judge than"):
        read_runs(runs)
    judge_run(runs[0], load, Judges(other))
    column = "citation_f1_nli (last word)"
    assert column in compare(read_runs(runs)).tables[0].metrics
    next(runs[0].glob("places.judged.*.json")).unlink()  # a judge that not all runs have is left out
    assert column not in compare(read_runs(runs)).tables[0].metrics
    assert column in compare(read_runs(runs[1:])).tables[0].metrics


def test_figures_of_all_items_have_no_interval(runs: list[Path]) -> None:
    for folder, value in zip(runs, (0.9, 0.4), strict=True):
        whole = {"mauve": {"value": value, "low": value, "high": value, "texts": 4}}
        write_judged(folder, "places", Judged("gpt2", {}, whole=whole), {})
        write_judged(folder, "places", Judged("other", {}, whole={"mauve": None}), {})
    found = compare(read_runs(runs), against="wrong")
    first, second = found.tables[0].rows
    figure, difference = first.figures["mauve (gpt2)"], first.differences["mauve (gpt2)"]
    assert (figure.value, difference.value) == (0.9, pytest.approx(0.5))
    assert figure.low != figure.low
    assert second.figures["mauve (other)"] is None
    for text in (markdown(found), csv_text(found)):
        assert "nan" not in text.lower()


def test_passages_that_a_file_does_not_bring_are_read_from_traces(tmp_path: Path, data: TaskFile) -> None:
    system = FineTuned(PROMPTING, 1)
    bare = {one.id: replace(one, passages=()) for one in data.items}
    for name, traces in (("with", True), ("without", False)):
        work = replace(job(tmp_path / name), system=system, identity={"name": name, "model": {}}, traces=traces)
        run(work, [data], lambda: Slow(writes("Paris"), 0.0))
    (found,) = judge_run(tmp_path / "with", lambda *_: bare, Judges(last_word()))["places"]
    assert found.parts["citation_recall_nli"]["q0"] == (1.0, 1.0)
    with pytest.raises(UserError, match="passage 'good' is not known; give the index of the run, or run with traces"):
        judge_run(tmp_path / "without", lambda *_: bare, Judges(last_word()))


def test_figures_of_one_judge_are_in_one_file(runs: list[Path], data: TaskFile) -> None:
    items = {one.id: replace(one, claims=("in Paris", "in Oslo"), topic="Paris") for one in data.items}
    judges = Judges(last_word(), knowledge=lambda queries, k: [PASSAGES[:k]] * len(queries), source={"index": "abc"})
    judge_run(runs[0], lambda *_: items, judges, ["citations", "claims", "facts"])
    facts, own = sorted(read_judged(runs[0], "places"), key=lambda one: one.judge, reverse=True)
    assert (own.judge, own.parts["claim_recall"]["q0"]) == ("last word", (0.5, 1.0))
    assert set(own.parts) == {*CITATIONS, "claim_recall"}
    assert (facts.judge, facts.parts["factscore_unpenalised"]["q0"]) == ("sentences, last word", (1.0, 1.0))
    assert facts.identity["knowledge"] == {"index": "abc"}


def test_damage_is_named(runs: list[Path], data: TaskFile) -> None:
    load = known(data)
    judge_run(runs[0], load, Judges(last_word()))
    (path,) = runs[0].glob("places.judged.*.json")
    records = (runs[0] / "places.jsonl").read_text()
    (runs[0] / "places.jsonl").write_text(records + "\n")
    with pytest.raises(UserError, match="is about other records"):
        read_judged(runs[0], "places")
    (runs[0] / "places.jsonl").write_text(records)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match="judge the run again"):
        read_runs(runs[:1])
    with pytest.raises(UserError, match="has item 'q0', and the data file has not"):
        judge_run(runs[0], lambda *_: {}, Judges(last_word()))
    with pytest.raises(UserError, match="has no third; it has places"):
        judge_run(runs[0], load, Judges(last_word()), only=["third"])


def test_what_is_missing_is_asked_for(runs: list[Path], data: TaskFile) -> None:
    load = known(data)
    with locked_directory(runs[0]), pytest.raises(UserError, match="another process"):
        judge_run(runs[0], load, Judges(last_word()))  # its verdicts would be written into the other's lines
    for wanted, message in (("citations", "--judge"), ("claims", "--judge"), ("mauve", "--features")):
        with pytest.raises(UserError, match=message):
            judge_run(runs[0], load, Judges(), [wanted])
    with pytest.raises(UserError, match="--knowledge"):
        judge_run(runs[0], load, Judges(last_word()), ["facts"])
    assert families(["citation_f1_nli", "mauve", "citations"]) == ("citations", "mauve")
    assert families([]) == ("citations",)
    with pytest.raises(UserError, match=r"'contains'.*known: citation_recall_nli"):
        families(["contains"])


def test_the_command_asks_a_real_model(runs, data, tiny_nli, tmp_path, capsys, monkeypatch):
    command = ["eval", "judge", *map(str, runs), "--judge", f"nli:{tiny_nli}"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "nli" in shown  # who judged
    (judged,) = read_judged(runs[0], "places")
    assert judged.judge == tiny_nli.name
    assert judged.identity["files"]
    assert list(judged.parts["citation_recall_nli"]) == ["q0", "q1", "q2", "q3"]
    with monkeypatch.context() as patched:  # every verdict is on disk: what the judge is is known without its weights
        patched.setattr("transformers.AutoModelForSequenceClassification.from_pretrained", None)
        assert main(command) == 0
    assert tiny_nli.name in capsys.readouterr().out
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    data.path.rename(moved / data.path.name)
    assert main(command) != 0
    assert "--data" in capsys.readouterr().err
    assert main([*command, "--data", str(moved)]) == 0
    assert main(["eval", "judge", str(runs[0]), "--data", str(moved)]) != 0
    assert "--judge: true, nli:MODEL" in capsys.readouterr().err


def test_the_official_factscore_tool_between_two_commands(
    runs: list[Path], data: TaskFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "facts", str(runs[0]), "places"]
    assert main(command) != 0
    assert "--write FILE.jsonl before" in capsys.readouterr().err
    assert main([*command, "--write", str(tmp_path / "in.jsonl")]) != 0
    assert "item 'q0' has no 'topic'" in capsys.readouterr().err
    rows = [json.loads(line) | {"topic": "Paris"} for line in data.path.read_text().splitlines()]
    data_file(tmp_path, *rows, name="places.jsonl")
    work = replace(job(tmp_path / "bios"), system=FineTuned(PROMPTING, 1), identity={"name": "bios", "model": {}})
    run(work, [read_task(data.path)], lambda: Slow(writes("Paris"), 0.0))
    command = ["eval", "facts", str(work.folder), "places"]
    assert main([*command, "--write", str(tmp_path / "in.jsonl")]) == 0
    assert json.loads((tmp_path / "in.jsonl").read_text().splitlines()[0])["topic"] == "Paris"
    decisions = [[{"atom": "x", "is_supported": at < 3}] * 11 for at in range(4)]
    (tmp_path / "out.json").write_text(json.dumps({"decisions": decisions}))
    assert main([*command, "--read", str(tmp_path / "out.json")]) == 0
    (row,) = compare(read_runs([work.folder])).tables[0].rows
    score, facts = (row.figures[f"{name} (factscore.factscorer)"] for name in ("factscore", "facts"))
    assert (score.value, facts.value) == (0.75, 11.0)
    assert "11.0" in markdown(compare(read_runs([work.folder])))
