from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.training.rows import REFLECTION_TOKENS, Evidence, Row, Text, Token, read_rows, write_rows

GOOD = {
    "id": "a",
    "source": "nq/gold",
    "instruction": "who?",
    "target": [{"token": "[Retrieval]"}, {"passage": {"id": "p", "title": "", "text": "T"}}, {"text": "me"}],
}

anything = st.text(st.characters(exclude_categories=["Cs"]))
words = anything.filter(str.strip)
parts = st.one_of(
    st.sampled_from(sorted(REFLECTION_TOKENS)).map(Token),
    words.map(Text),
    st.builds(lambda i, t, title: Evidence(Passage(i, t, title)), words, words, anything),
)
row_values = st.builds(Row, words, words, words, st.lists(parts, min_size=1).map(tuple), st.floats(0.01, 100))


@given(row=row_values)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, row: Row) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    assert write_rows(path, [row]) == 1
    assert list(read_rows(path)) == [row]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"id": ""}, "'id'"),
        ({"id": "a"}, "id 'a' occurs twice"),
        ({"source": 3}, "'source'"),
        ({"extra": 1}, "unknown extra"),
        ({"target": []}, "'target'"),
        ({"target": [{"token": "[relevant]"}]}, "[relevant]"),
        ({"target": [{"text": "a", "token": "[Relevant]"}]}, "exactly one"),
        ({"target": [{"passage": {"id": "p", "text": "T"}}]}, "lacks title"),
        ({"target": [{"passage": {"id": "p", "title": "", "text": ""}}]}, "'text'"),
        ({"weight": 0}, "'weight'"),
        ({"weight": float("nan")}, "'weight'"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, change, named) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"id": "b"} | change) + "\n")
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    assert f"{path}:2: " in str(caught.value)
    assert named in str(caught.value)
    path.write_text('{"id": "a"}\n')
    with pytest.raises(UserError, match=r"rows\.jsonl:1: row lacks instruction, source, target"):
        list(read_rows(path))
