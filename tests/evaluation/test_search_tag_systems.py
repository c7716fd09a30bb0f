"""Models that search by tags as systems of a run: their own searches, given passages, budgets, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from tagged import CODEC, FOUND, model, two_searches

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.decoding.search_tags import PROFILES
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.runner import Model, OpenedOnUse, Run, Source, answer_here, run_all, run_systems
from selfrag.evaluation.systems import Searching, known_systems, named_system
from selfrag.evaluation.task import CLOSED, SHORT, Task
from selfrag.evaluation.task_files import TaskFile

ITEM = Item("q", "Who?", True, FOUND[:1], gold=frozenset({"d2"}), answers=("Text of d2",), task="short_qa")


def run(folder: Path, item: Item = ITEM, task: Task = SHORT, live: bool = True) -> dict[str, Any]:
    """The one record of a run of two searches and an answer."""
    scripted, _, engine = model(two_searches)
    found: list[str] = []

    def search(queries: Sequence[str], k: int) -> list[Sequence[Passage]]:
        found.extend(queries)
        return [FOUND[:k] for _ in queries]

    job = Run(Searching(scripted.searcher, live=live), {"name": "tags"}, folder)
    file = TaskFile("set", Path("set.jsonl"), "0" * 64, task, (item,), 1)
    run_all([job], [file], answer_here(lambda: engine, search))
    record: dict[str, Any] = json.loads((folder / "set.jsonl").read_text())
    return record | {"searched": found, "prompts": [CODEC.surface(one.prompt_ids) for one in engine.requests]}


def test_it_searches_by_itself(tmp_path: Path) -> None:
    record = run(tmp_path, replace(ITEM, instruction="Answer: Who?", query="Who?"))
    assert "Question: Who?\n" in record["prompts"][0]
    assert record["searched"] == ["first", "second one"]
    assert record["text"] == "Text of d2."
    assert record["cited"] == ["d2"]
    assert record["read"] == ["d1", "d2", "d3"]
    assert record["usage"]["searches"] == 2
    assert record["scores"]["contains"] == [1.0, 1.0]


def test_without_an_index_each_search_gets_the_items_passages(tmp_path: Path) -> None:
    record = run(tmp_path, live=False)
    assert record["searched"] == []
    assert record["read"] == ["d1"]
    assert record["cited"] == []
    assert record["prompts"][-1].count("Text of d1.") == 2
    assert "Text of d2" not in record["prompts"][-1]


def test_no_answer_within_the_budget_is_a_wrong_answer_with_its_reason(tmp_path: Path) -> None:
    scripted, _, engine = model(lambda text: "I do not know what to do", tokens=10)
    job = Run(Searching(scripted.searcher), {"name": "tags"}, tmp_path)
    run_all([job], [TaskFile("set", Path("set.jsonl"), "0" * 64, SHORT, (ITEM,), 1)], answer_here(lambda: engine))
    record = json.loads((tmp_path / "set.jsonl").read_text())
    assert (record["text"], record["error"]) == ("", None)
    assert record["partial"] == "the model gave no answer within its budget"
    assert record["scores"]["contains"] == [0.0, 1.0]


def test_multiple_choice_is_told(tmp_path: Path) -> None:
    item = replace(ITEM, options=("x", "y"), label="A", task="multiple_choice")
    assert "has no multiple choice" in run(tmp_path, item, CLOSED)["error"]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_format_is_a_system(profile: str) -> None:
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    system = named_system(profile, tokenizer, {"searches": 2, "passages": 7})
    assert profile in known_systems()
    stated = json.loads(json.dumps(system.as_dict()))
    assert stated["profile"]["name"] == profile
    assert (stated["budget"]["searches"], stated["budget"]["passages"]) == (2, 7)
    with pytest.raises(UserError, match="unknown setting 'treshold'"):
        named_system(profile, tokenizer, {"treshold": 0.5})
    with pytest.raises(UserError, match="searches"):
        named_system(profile, tokenizer, {"searches": -1})


def source(folder: Path) -> Source:
    rows = [{"id": f"q{n}", "instruction": f"Who is {n}?", "answers": ["a"], "task": "short_qa"} for n in range(3)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "finder.py").write_text(
        "from retrieval.passage import Passage\n"
        "def search(queries, k):\n"
        "    return [[Passage('p', 'a text', 'T')][:k] for _ in queries]\n"
    )
    return Source([folder / "own.jsonl"], retriever="finder:search", found=1)


@pytest.mark.engine
def test_a_real_model_here_and_as_the_command(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = source(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_systems(
        {"r1": "search-r1"},
        Model(str(tiny_llama), "transformers"),
        given.load(),
        tmp_path / "runs",
        source=given.settings(),
        settings={"tokens": 20},
        retriever=OpenedOnUse(given.open),
    )
    manifest = json.loads((tmp_path / "runs" / "r1" / "manifest.json").read_text())
    assert manifest["identity"]["system"]["searches"] == "by itself"
    arguments = ["eval", "run", tmp_path / "own.jsonl", "--system", "search-r1", "--name", "r1", "--model", tiny_llama]
    arguments += ["--engine", "transformers", "--retriever", "finder:search", "--found", 1, "--set", "tokens=20"]
    assert main([*map(str, arguments), "--out", str(tmp_path / "runs")]) == 0  # the same run, which is done
    assert "r1" in capsys.readouterr().out
    assert main([*map(str, arguments), "--out", str(tmp_path / "again")]) == 0
    for place in ("runs", "again"):
        records = (tmp_path / place / "r1" / "own.jsonl").read_text().splitlines()
        assert len(records) == 3
    assert (tmp_path / "runs/r1/own.jsonl").read_bytes() == (tmp_path / "again/r1/own.jsonl").read_bytes()
