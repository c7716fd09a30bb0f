"""Models that search by tags as systems of an evaluation."""

from dataclasses import replace
from pathlib import Path

import pytest
import tagged
import tiny
from refusals import refused
from scripted_run import data_file

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.evaluation.items import Item
from selfrag.evaluation.records import read_manifest, read_records
from selfrag.evaluation.runner import RunJob, answer_here, run_all
from selfrag.evaluation.systems import known_systems, named_system
from selfrag.evaluation.task import SHORT
from selfrag.evaluation.task_files import TaskFile
from selfrag.extensions.search_tags.decoder import PROFILES
from selfrag.extensions.search_tags.system import Searching

PASSAGES = tuple(
    Passage(f"d{i}", f"Text of d{i}.", f"Title of d{i}") for i in (1, 2, 3)
)
ITEM = Item(
    "q",
    "Q",
    PASSAGES,
    gold=frozenset({"d1"}),
    answers=("Paris",),
    references=("Paris",),
    task="short_qa",
)


def searching(folder, turns=tagged.two_searches, live=True, **options):
    """The one record of a run."""
    scripted, _, engine = tagged.model(turns, **options)
    queries_seen = []

    def search(queries, k):
        queries_seen.extend(queries)
        return [tagged.FOUND[:k] for _ in queries]

    item = replace(
        ITEM, instruction="Who?", passages=tagged.FOUND[:1], answers=("Text of d2",)
    )
    file = TaskFile("set", Path("set.jsonl"), "0" * 64, SHORT, (item,), 1)
    run_all(
        [RunJob(Searching(scripted.searcher, live=live), {"name": "tags"}, folder)],
        [file],
        answer_here(lambda: engine, search),
    )
    (record,) = read_records(folder / "set.jsonl")
    prompts = [tagged.CODEC.surface(request.prompt_ids) for request in engine.requests]
    return {**record, "searched": queries_seen, "prompts": prompts}


def test_it_searches_by_itself_or_each_search_gets_the_items_passages(tmp_path):
    record = searching(tmp_path / "live")
    assert "Question: Who?\n" in record["prompts"][0]
    assert record["searched"] == ["first", "second one"]
    assert (record["text"], record["cited"], record["read"]) == (
        "Text of d2.",
        ["d2"],
        ["d1", "d2", "d3"],
    )
    assert (record["usage"]["searches"], record["scores"]["contains"]) == (
        2,
        [1.0, 1.0],
    )
    record = searching(tmp_path / "given", live=False)
    assert (record["searched"], record["read"], record["cited"]) == ([], ["d1"], [])
    assert record["prompts"][-1].count("Text of d1.") == 2
    assert "Text of d2" not in record["prompts"][-1]


def test_no_answer_within_the_budget_is_a_wrong_answer_with_its_reason(tmp_path):
    record = searching(tmp_path, lambda text: "I do not know what to do", tokens=10)
    assert (record["text"], record["error"]) == ("", None)
    assert record["partial"] == "the model gave no answer within its budget"
    assert record["scores"]["contains"] == [0.0, 1.0]


@pytest.mark.engine
def test_a_real_model_and_a_retriever_of_ones_own(tmp_path, tiny_llama, monkeypatch):
    row = {"id": "q", "instruction": "Who?", "answers": ["a"], "task": "short_qa"}
    (tmp_path / "finder.py").write_text(
        "from retrieval.passage import Passage\n"
        "def search(queries, k):\n"
        "    return [[Passage('p', 'a text', 'T')][:k] for _ in queries]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = (
        f"eval run {data_file(tmp_path, row)} --system search-r1 --model {tiny_llama}"
    ).split()
    command += [
        "--engine",
        "transformers",
        "--retriever",
        "finder:search",
        "--found",
        "1",
        "--set",
        "tokens=20",
    ]
    assert main([*command, "--out", str(tmp_path)]) == 0
    assert (
        read_manifest(tmp_path / "search-r1")["identity"]["system"]["searches"]
        == "by itself"
    )
    assert [
        record["id"] for record in read_records(tmp_path / "search-r1" / "set.jsonl")
    ] == ["q"]


def test_each_format_is_a_system_with_a_budget_of_its_own():
    tokenizer = tiny.byte_level_tokenizer(reflection=True)
    for profile in PROFILES:
        assert profile in known_systems()
        stated = named_system(
            profile, tokenizer, {"searches": 2, "passages": 7}
        ).as_dict()
        budget = stated["budget"]
        assert (stated["profile"]["name"], budget["searches"], budget["passages"]) == (
            profile,
            2,
            7,
        )
    for settings, message in (
        ({"treshold": 0.5}, "unknown setting 'treshold'"),
        ({"searches": -1}, "searches"),
    ):
        with refused(message):
            named_system("search-r1", tokenizer, settings)
