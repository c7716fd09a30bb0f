"""Models that search by tags as systems of a run: their own searches, given passages, budgets, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from selfrag.evaluation.runner import Run, answer_here, run_all
from selfrag.evaluation.systems import Searching, known_systems, named_system
from selfrag.evaluation.task import SHORT
from selfrag.evaluation.task_files import TaskFile

ITEM = Item("q", "Who?", True, FOUND[:1], gold=frozenset({"d2"}), answers=("Text of d2",), task="short_qa")


def run(folder: Path, turns: Any = two_searches, live: bool = True, **options: Any) -> dict[str, Any]:
    """The one record of a run."""
    scripted, _, engine = model(turns, **options)
    found: list[str] = []

    def search(queries: Sequence[str], k: int) -> list[Sequence[Passage]]:
        found.extend(queries)
        return [FOUND[:k] for _ in queries]

    job = Run(Searching(scripted.searcher, live=live), {"name": "tags"}, folder)
    file = TaskFile("set", Path("set.jsonl"), "0" * 64, SHORT, (ITEM,), 1)
    run_all([job], [file], answer_here(lambda: engine, search))
    record: dict[str, Any] = json.loads((folder / "set.jsonl").read_text())
    return record | {"searched": found, "prompts": [CODEC.surface(one.prompt_ids) for one in engine.requests]}


def test_it_searches_by_itself(tmp_path: Path) -> None:
    record = run(tmp_path)
    assert "Question: Who?\n" in record["prompts"][0]
    assert record["searched"] == ["first", "second one"]
    assert (record["text"], record["cited"], record["read"]) == ("Text of d2.", ["d2"], ["d1", "d2", "d3"])
    assert (record["usage"]["searches"], record["scores"]["contains"]) == (2, [1.0, 1.0])


def test_without_an_index_each_search_gets_the_items_passages(tmp_path: Path) -> None:
    record = run(tmp_path, live=False)
    assert (record["searched"], record["read"], record["cited"]) == ([], ["d1"], [])
    assert record["prompts"][-1].count("Text of d1.") == 2
    assert "Text of d2" not in record["prompts"][-1]


def test_no_answer_within_the_budget_is_a_wrong_answer_with_its_reason(tmp_path: Path) -> None:
    record = run(tmp_path, lambda text: "I do not know what to do", tokens=10)
    assert (record["text"], record["error"]) == ("", None)
    assert record["partial"] == "the model gave no answer within its budget"
    assert record["scores"]["contains"] == [0.0, 1.0]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_format_is_a_system(profile: str) -> None:
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    stated = named_system(profile, tokenizer, {"searches": 2, "passages": 7}).as_dict()
    assert profile in known_systems()
    assert stated["profile"]["name"] == profile
    assert (stated["budget"]["searches"], stated["budget"]["passages"]) == (2, 7)
    for settings, said in (({"treshold": 0.5}, "unknown setting 'treshold'"), ({"searches": -1}, "searches")):
        with pytest.raises(UserError, match=said):
            named_system(profile, tokenizer, settings)


@pytest.mark.engine
def test_a_real_model_and_a_retriever_of_ones_own(tmp_path: Path, tiny_llama: Path, monkeypatch) -> None:
    row = {"id": "q", "instruction": "Who?", "answers": ["a"], "task": "short_qa"}
    (tmp_path / "own.jsonl").write_text(json.dumps(row))
    (tmp_path / "finder.py").write_text(
        "from retrieval.passage import Passage\n"
        "def search(queries, k):\n"
        "    return [[Passage('p', 'a text', 'T')][:k] for _ in queries]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = ["eval", "run", str(tmp_path / "own.jsonl"), "--system", "search-r1", "--model", str(tiny_llama)]
    command += ["--engine", "transformers", "--retriever", "finder:search", "--found", "1", "--set", "tokens=20"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    manifest = json.loads((tmp_path / "search-r1" / "manifest.json").read_text())
    assert manifest["identity"]["system"]["searches"] == "by itself"
    assert json.loads((tmp_path / "search-r1" / "own.jsonl").read_text())["id"] == "q"
