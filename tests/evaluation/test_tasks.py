"""Kinds of task by fields, closed sets, strict reading, evidence from an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_run import data_file as write

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.items import Item, choices
from selfrag.evaluation.task import BIOGRAPHY, CLOSED, LIST, LONG, SHORT, task_of
from selfrag.evaluation.task_files import read_task, read_tasks, searched

ROW: dict[str, Any] = {"id": "a", "task": "short_qa", "instruction": "who?", "answers": ["Ann"]}
CHOICE = {
    "id": "c",
    "task": "multiple_choice",
    "instruction": "Choose.\n\n## Input:\n\nWhich?\nA: x\nB: y",
    "answers": ["B", "y"],
    "label": "B",
    "options": ["x", "y"],
}
EVIDENCE = {"passages": [{"id": "p", "text": "x"}]}
SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "eval" / "dev"


def closed(label: str, *options: str) -> Item:
    return Item("q", "?", None, label=label, options=options)


def test_a_label_names_an_option_by_text_letter_or_number() -> None:
    assert choices(closed("true", "true", "false")).surfaces == ("true", "false")
    assert choices(closed("B", "x", "y", "z")).surfaces == ("A", "B", "C")
    assert choices(closed("2", "x", "y")).surfaces == ("1", "2")
    assert choices(closed("2", "x", "y")).right == "2"


@pytest.mark.parametrize("label", ["D", "4", "maybe", "0"])
def test_defect_28_a_label_out_of_range_is_refused(label: str) -> None:
    with pytest.raises(UserError, match=f"label '{label}' is none of"):
        choices(closed(label, "x", "y", "z"))


def test_the_kind_follows_from_the_fields() -> None:
    words = " ".join(["word"] * 11)
    known = {
        closed("A", "x", "y"): CLOSED,
        Item("q", "?", True, task="short_qa_multihop", references=(words,)): SHORT,
        Item("q", "?", True, task="long_form", references=("x",)): LONG,
        Item("q", "?", True, task="something", references=("two words",)): SHORT,
        Item("q", "?", True, task="something", references=(words,)): LONG,
        Item("q", "?", True, task="x", references=("a", "b"), answer_sets=(("a",), ("b",))): LIST,
        Item("q", "?", True, task="long_qa", references=("a", "b"), answer_sets=(("a",), ("b",))): LONG,
        Item("q", "?", True, task="x", topic="Ann"): BIOGRAPHY,
    }
    for item, kind in known.items():
        assert task_of(item) is kind, item


def test_a_file_is_read_with_its_kind_and_a_seeded_sample_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, *(ROW | {"id": f"q{i}"} for i in range(20)))
    file = read_task(path, limit=5, seed=3)
    assert (file.name, file.task, file.rows, len(file.items)) == ("set", SHORT, 20, 5)
    numbers = [int(item.id[1:]) for item in file.items]
    assert numbers == sorted(numbers)
    assert file.items == read_task(path, limit=5, seed=3).items
    assert file.items != read_task(path, limit=5, seed=4).items


def test_a_file_names_its_metrics_in_its_first_row(tmp_path: Path) -> None:
    task = read_task(write(tmp_path, ROW | {"metrics": ["f1", "str_em"]}, ROW | {"id": "b"})).task
    assert (task.headline, [metric.name for metric in task.metrics]) == ("f1", ["f1", "str_em"])
    assert (task.kind, task.new_tokens) == (SHORT.kind, SHORT.new_tokens)


def test_fields_of_a_row_reach_the_item(tmp_path: Path) -> None:
    passages = [{"id": f"p{i}", "title": f"T{i}", "text": "x"} for i in range(3)]
    given = {"claims": ["Ann paints."], "topic": "Ann", "passages": passages, "support": ["T2", "T0"]}
    (item,) = read_task(write(tmp_path, ROW | {"task": "trivia"} | given)).items
    assert (item.claims, item.topic, item.gold) == (("Ann paints.",), "Ann", {"p0", "p2"})
    assert item.answers == ("Ann",)  # of an unknown kind of short answers, too


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW, ROW], r"set.jsonl:2: id 'a' occurs twice"),
        ([ROW, CHOICE], r"set.jsonl:2: kind closed after rows of kind short"),
        ([ROW | {"answers": []}], r"set.jsonl:1: no gold answer"),
        ([ROW | {"answers": ["Ann", " "]}], r"set.jsonl:1: 'answers' has a blank text"),
        ([CHOICE | {"label": "C"}], r"set.jsonl:1: label 'C' is none of A, B"),
        ([CHOICE, CHOICE | {"id": "d", "options": ["x", "x"]}], r"set.jsonl:2: .*equal"),
        ([CHOICE | {"options": [str(n) for n in range(30)]}], r"set.jsonl:1: .*30 options, and letters name 26"),
        ([{"id": "x", "kind": "short_qa", "instruction": "who?"}], r"set.jsonl:1: .*key 'task' is missing"),
        ([ROW | {"passages": [{"id": "p", "text": "x"}] * 2}], r"set.jsonl:1: two passages have one id"),
        ([], r"set.jsonl: no rows"),
        ([ROW | {"metrics": ["bleu"]}], r"set.jsonl:1: unknown metric 'bleu'; all are in docs/"),
        ([ROW | {"metrics": ["mauve"]}], r"set.jsonl:1: metric mauve needs a model"),
        ([ROW | EVIDENCE, ROW | {"id": "b"}], r"set.jsonl:2: no passages, though the rows before it have some; fill"),
        ([ROW, ROW | {"id": "b", "metrics": ["f1"]}], r"set.jsonl:2: 'metrics' differ from those of the first row"),
        ([ROW | {"task": "x", "answers": [["a"], ["b"]]}, ROW | {"id": "b"}], r"set.jsonl:2: kind short after .* list"),
    ],
)
def test_bad_files_are_named_by_line(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_task(write(tmp_path, *rows))


def test_passages_are_searched_for_items_without_any_by_their_question(tmp_path: Path) -> None:
    own = {"passages": [{"id": "own", "title": "", "text": "x"}]}
    file = read_task(
        write(tmp_path, CHOICE, CHOICE | {"id": "d"} | own, CHOICE | {"id": "e", "question": "Which one?"}),
        searched=True,
    )
    asked: list[str] = []

    def search(queries: Any, k: int) -> list[list[Passage]]:
        asked.extend(queries)
        return [[Passage(f"found-{k}", "text")] for _ in queries]

    found = searched(file.items, search, 7)
    assert asked == ["Which?\nA: x\nB: y", "Which one?"]
    assert [item.passages[0].id for item in found] == ["found-7", "own", "found-7"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the given evaluation files are not beside this checkout")
def test_the_given_files_are_read() -> None:
    kinds = {file.name: (file.task.kind, file.rows) for file in read_tasks(sorted(SHARED.glob("*.jsonl*")))}
    assert kinds == {
        "arc_c": ("closed", 600),
        "clapnq_dev": ("long", 280),
        "fever_symmetric": ("closed", 712),
        "hotpot_dev": ("short", 244),
        "nq_dev": ("short", 589),
        "truthfulqa_mc": ("closed", 816),
    }
