"""Models that search by tags as systems of an evaluation."""

from pathlib import Path

import pytest
import tagged
import tiny
from refusals import refused
from scripted_run import data_file

from selfrag.evaluation.items import Item
from selfrag.evaluation.records import read_manifest, read_records
from selfrag.evaluation.runner import RunJob, answer_here, run_all
from selfrag.evaluation.systems import known_systems, named_system
from selfrag.evaluation.task import SHORT
from selfrag.evaluation.task_files import TaskFile
from selfrag.extensions.search_tags.decoder import PROFILES
from selfrag.extensions.search_tags.system import Searching

ITEM = Item(
    "q",
    "Who?",
    tagged.FOUND[:1],
    gold=frozenset({"d1"}),
    answers=("Text of d2",),
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

    file = TaskFile("set", Path("set.jsonl"), "0" * 64, SHORT, (ITEM,), 1)
    system = Searching(scripted.searcher, live=live)
    jobs = [RunJob(system, {"name": "tags"}, folder)]
    run_all(jobs, [file], answer_here(lambda: engine, search))
    (record,) = read_records(folder / "set.jsonl")
    prompts = [tagged.CODEC.surface(request.prompt_ids) for request in engine.requests]
    return record, queries_seen, prompts


def test_it_searches_by_itself_or_each_search_gets_the_items_passages(tmp_path):
    record, queries, prompts = searching(tmp_path / "live")
    assert "Question: Who?\n" in prompts[0]
    assert queries == ["first", "second one"]
    assert record["text"] == "Text of d2."
    assert record["cited"] == ["d2"]
    assert record["read"] == ["d1", "d2", "d3"]
    assert record["usage"]["searches"] == 2
    assert record["scores"]["contains"] == [1.0, 1.0]
    record, queries, prompts = searching(tmp_path / "given", live=False)
    assert queries == record["cited"] == []
    assert record["read"] == ["d1"]
    assert prompts[-1].count("Text of d1.") == 2
    assert "Text of d2" not in prompts[-1]


def test_no_answer_within_the_budget_is_a_wrong_answer_with_its_reason(tmp_path):
    record, *_ = searching(tmp_path, lambda text: "I do not know what to do", tokens=10)
    assert record["text"] == ""
    assert record["error"] is None
    assert record["partial"] == "the model gave no answer within its budget"
    assert record["scores"]["contains"] == [0.0, 1.0]


FINDER = """
from retrieval.passage import Passage
def search(queries, k):
    return [[Passage('p', 'a text', 'T')][:k] for _ in queries]
"""


@pytest.mark.engine
def test_a_real_model_and_a_retriever_of_ones_own(
    tmp_path, tiny_llama, monkeypatch, command
):
    row = {"id": "q", "instruction": "Who?", "answers": ["a"], "task": "short_qa"}
    (tmp_path / "finder.py").write_text(FINDER)
    monkeypatch.syspath_prepend(tmp_path)
    command(
        f"selfrag eval run {data_file(tmp_path, row)} --system search-r1 --model {tiny_llama} --engine transformers"
        f" --retriever finder:search --found 1 --set tokens=20 --out {tmp_path}"
    )
    folder = tmp_path / "search-r1"
    assert read_manifest(folder)["identity"]["system"]["searches"] == "by itself"
    (record,) = read_records(folder / "set.jsonl")
    assert record["id"] == "q"


def test_each_format_is_a_system_with_a_budget_of_its_own():
    tokenizer = tiny.byte_level_tokenizer(reflection=True)
    for profile in PROFILES:
        assert profile in known_systems()
        settings = {"searches": 2, "passages": 7}
        stated = named_system(profile, tokenizer, settings).as_dict()
        assert stated["profile"]["name"] == profile
        assert stated["budget"].items() >= settings.items()
    for settings in ({"treshold": 0.5}, {"searches": -1}):
        with refused(next(iter(settings))):
            named_system("search-r1", tokenizer, settings)
