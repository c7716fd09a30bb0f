"""JSON that models wrote: found, placed, and kept as far as it goes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.intrinsics.dialects.lenient_json import Node, read

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def nodes(node: Node):
    yield node
    for child in [*(node.members or {}).values(), *(node.items or ())]:
        yield from nodes(child)


@pytest.mark.parametrize(
    ("text", "value", "complete"),
    [
        ('```json\n{"q": "x"}\n```', {"q": "x"}, True),
        ('Here it is: {"q": "x"} Good luck.', {"q": "x"}, True),
        ('"{\\"<r0>\\": \\"0.2-0.3\\"}"', {"<r0>": "0.2-0.3"}, True),
        ('"\\"{\\\\\\"a\\\\\\": 1}\\""', '"{\\"a\\": 1}"', True),  # a string of a string is no object; it stays text
        ('[{"r":0,"c":[8,', [{"r": 0, "c": [8]}], False),
        ('[{"r":0,"c":[8', [{"r": 0, "c": []}], False),  # 8 may have been 83
        ('[{"r":0,"f":bad},{"r":1,"f":"x"}]', [{"r": 1, "f": "x"}], False),
        ('[{"r":0,"c":[1]}{"r":1,"c":[]}]', [{"r": 0, "c": [1]}, {"r": 1, "c": []}], False),
        ('{"q": "half', {"q": "half"}, False),
        ("[", [], False),
        ("[1, 2,]", [1, 2], True),
        ('{"a": 1,}', {"a": 1}, True),
        ('{"q": "it\\\'s"}', {"q": "it's"}, True),
        ('{"q": "line\nbreak"}', {"q": "line\nbreak"}, True),
        ('{"q": "\\ud83d"}', {"q": "\ufffd"}, True),
        ("7", 7, True),
        ('"unanswerable"', "unanswerable", True),
    ],
)
def test_found_and_damage_is_marked(text: str, value: object, complete: bool):
    root = read(text).root
    assert root is not None
    assert (root.value, root.complete) == (value, complete)


@pytest.mark.parametrize("text", ["", " \n", "garbage", "<invalid model response>", "tru", "-", "1" * 6000, "a [note]"])
def test_nothing_to_be_found(text: str):
    assert read(text).root is None


@given(VALUES, st.sampled_from([None, 1]))
def test_every_value_stands_where_it_says(value: object, indent: int | None):
    for root in ({"a": value}, [value]):
        text = f"so: {json.dumps(root, indent=indent, ensure_ascii=False)}"
        reading = read(text)
        assert reading.root is not None
        assert reading.root.complete
        assert reading.root.value == root
        for node in nodes(reading.root):
            assert json.loads(reading.text[node.begin : node.end]) == node.value


@given(VALUES, st.data())
def test_a_cut_loses_only_what_comes_after_it(value: object, data: st.DataObject):
    records = [{"r": 0, "v": value}, {"r": 1, "v": "x"}]
    text = json.dumps(records)
    cut = data.draw(st.integers(1, len(text) - 1))
    root = read(text[:cut]).root
    assert root is not None
    assert not root.complete
    first = len(json.dumps(records[:1])) - 1
    if cut > first:
        assert root.value[0] == records[0]


@given(st.text(max_size=40))
def test_nothing_that_is_written_raises(text: str):
    read(text)
    read("[" + text)
    read('{"a": "' + text)


@pytest.mark.parametrize("unit", ["[", '{"a":[', "[1,", '{"a":[{x},', "[{x},{x}", '["', '{"\\q', "[ \n"])
def test_any_nesting_is_read_in_linear_time(growth, unit):
    assert growth(lambda length: unit * (length // len(unit)), read, 2**14) < 8


@pytest.mark.parametrize("deep", ["[" * 16_000, '{"a":' * 9_000, "[" * 9_000 + "]" * 9_000])
def test_what_is_nested_too_deeply_is_no_whole_value(deep):
    reading = read(deep)
    assert reading.root is None or not reading.root.complete or reading.extra
    assert read(f'{deep} {{"score": "1"}}').text
