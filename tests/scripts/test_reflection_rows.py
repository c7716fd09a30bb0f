from __future__ import annotations

import gzip
import json

import pytest

from reflection_quality import read_rows
from retrieval.errors import UserError

PASSAGE = {"id": "p1", "title": "T", "text": "Body."}
TASK = {
    "id": "q",
    "task": "short_qa",
    "instruction": "who?",
    "answers": ["me"],
    "passages": [PASSAGE],
    "gold_passage_ids": ["p1"],
}


def _read(tmp_path, *records, where=None):
    path = tmp_path / "items.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))
    return read_rows(path, where)


def test_eval_rows(tmp_path) -> None:
    open_, closed, choice, long = _read(
        tmp_path,
        TASK,
        TASK | {"task": "fact_check", "label": "true", "options": ["true", "false"]},
        TASK | {"task": "multiple_choice", "label": "A", "options": ["x", "y"], "passages": []},
        TASK | {"task": "long_form", "label": "unanswerable"},
    )
    assert (open_.answers, open_.gold, open_.label, open_.answerable) == (("me",), frozenset({"p1"}), None, None)
    assert open_.needs_retrieval is True
    assert open_.passages[0].title == "T"
    assert (closed.answers, closed.label, closed.answerable) == (None, "true", None)
    assert (choice.needs_retrieval, choice.label) == (None, "A")
    assert (long.answers, long.answerable, long.label) == (None, False, None)


def test_other_schemas(tmp_path) -> None:
    asked = {"conversation": [{"role": "user", "content": "who?"}], "documents": [{"doc_id": "d", "text": "B"}]}
    found = _read(
        tmp_path,
        {"id": "a", "label": "answerable"} | asked,
        {"id": "b", "kind": "instruction", "instruction": "Write."},
        {"id": "c", "kind": "short_qa", "instruction": "who?"},
        {"id": "d", "group": "Retrieve", "label": "No Retrieval", "preceding": "", "instruction": "Write."},
        {"id": "e", "group": "Retrieve", "label": "No Retrieval", "preceding": "Before.", "instruction": "who?"},
        {"id": "f", "group": "IsSup", "label": "Fully supported", "preceding": "", "instruction": "who?"},
        {"id": "g", "source": "s", "instruction": "Write.", "target": [{"token": "[No Retrieval]"}, {"text": "x"}]},
    )
    assert found[0].answerable is True
    assert found[0].passages[0].id == "d"
    assert [item.needs_retrieval for item in found] == [True, False, True, False, None, None, False]


def test_where_keeps_rows_and_an_empty_result_is_an_error(tmp_path) -> None:
    assert [i.id for i in _read(tmp_path, TASK, TASK | {"id": "z"}, where={"id": "z"})] == ["z"]
    with pytest.raises(UserError, match="no rows"):
        _read(tmp_path, TASK, where={"id": "y"})
    with pytest.raises(UserError, match=r"items\.jsonl\.gz:1: no key 'rule'"):
        _read(tmp_path, TASK, where={"rule": "y"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"instruction": None}, "'instruction'"),
        ({"passages": "p"}, "'passages' must be a list"),
        ({"passages": [{"id": "p1"}]}, "key 'text' is missing"),
        ({"answers": "me"}, "'answers' must be a list"),
        ({"gold_passage_ids": [1]}, "'gold_passage_ids' must be a list"),
        ({"task": "long_form", "label": "maybe"}, "answerable or unanswerable"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, change, named) -> None:
    with pytest.raises(UserError) as caught:
        _read(tmp_path, TASK, TASK | change)
    assert "items.jsonl.gz:2: " in str(caught.value)
    assert named in str(caught.value)


def test_an_unknown_schema_a_missing_key_and_a_broken_gzip(tmp_path) -> None:
    with pytest.raises(UserError, match="unknown kind of row"):
        _read(tmp_path, {"id": "x"})
    with pytest.raises(UserError, match=r":1: key 'id' is missing"):
        _read(tmp_path, {key: value for key, value in TASK.items() if key != "id"})
    path = tmp_path / "broken.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" * 1000)[:20])
    with pytest.raises(UserError, match=r"broken\.jsonl\.gz: cannot be read"):
        read_rows(path)
