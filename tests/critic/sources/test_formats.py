"""Each format on a small file in the schema in which its data set is published; the texts are made up."""

import json
from pathlib import Path

import pytest
from json_files import parse_table, read_lines
from refusals import refused

from critic.formats import FORMATS, format_of
from critic.mixture import MixtureReading, load
from critic.pairs import Dropped, Pair, parse_pair

SAMPLES = Path(__file__).parent / "samples"
EXPECTED = read_lines(SAMPLES / "expected.jsonl")
"""What comes of which sample, read how: pairs, and why other rows are none."""


def test_every_format_has_a_sample_and_the_papers_counts_are_those_of_its_table():
    assert {one["format"] for one in EXPECTED} == {form.name for form in FORMATS}
    rows = sum(form.paper_rows for form in FORMATS)
    assert rows == 145_619  # appendix A.3


@pytest.mark.parametrize(
    "one", EXPECTED, ids=lambda one: f"{one['format']}-{one['file']}"
)
def test_rows_become_pairs_that_the_rest_of_the_project_reads(one, tmp_path):
    form = format_of(one["format"])
    found = list(load(SAMPLES / one["file"], form, MixtureReading(**one["reading"])))
    pairs = [pair for pair in found if isinstance(pair, Pair)]
    assert [pair.as_dict() for pair in pairs] == one["pairs"]
    left_out = [
        [row.id.rpartition(":")[2], row.reason]
        for row in found
        if isinstance(row, Dropped)
    ]
    assert left_out == one["left_out"]
    assert [parse_pair(pair.as_dict()) for pair in pairs] == pairs
    other = tmp_path / "other.jsonl"
    other.write_text('{"colour": "red"}\n')
    with refused(r"other\.jsonl:1: .*'colour'"):
        list(load(other, form))


def test_a_conversation_may_be_named_like_a_piece_of_one():
    """Seven characters name a conversation, and one of them may be an underscore."""
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    rows = [
        {"id": key, "conversations": turns}
        for key in ("abcde_7", "abcde_7_0", "abcde_7_4")
    ]
    found = load(rows, format_of("sharegpt"))
    assert [isinstance(one, Pair) for one in found] == [True, True, False]


def test_defect_28_numbered_options_become_letters():
    four, numbered, three, five = load(SAMPLES / "arc.jsonl", format_of("arc_easy"))
    assert four.instruction.startswith(
        "Given four answer candidates, A, B, C and D, choose the best answer choice."
    )
    assert numbered.instruction.endswith("\nA: iron\nB: water\nC: wood\nD: air")
    assert three.instruction.startswith(
        "Given three answer candidates, A, B and C, choose"
    )
    assert numbered.output == "B"
    assert five.output == "E"


CHOICES = json.loads("""{"id": "q", "question": "?", "answerKey": "A",
 "choices": {"text": ["x", "y"], "label": ["A", "B"]}}""")


@pytest.mark.parametrize(
    "name, record, message",
    parse_table("""
arc_easy | {"answerKey": "E"} | 'answerKey' 'E' is none of the labels A, B
arc_easy | {"choices": {"text": ["x"], "label": ["A"]}} | 2 to 26
arc_easy | {"choices": {"text": ["x", "y"], "label": ["A"]}} | lists of different lengths
arc_easy | {"id": null} | 'id' must be a name or a whole number, not None
kilt_fever | {"id": 1, "input": "x", "output": [{"answer": "NO INFO"}]} | 'answer' must be true or false
sharegpt | {"conversations": [{"from": "cat", "value": "x"}]} | unknown speaker 'cat'
kilt_nq | {"question": "x", "answers": "y"} | 'answers' must be a list of texts
oasst1 | {"prompt": 7} | 'prompt' must be an object
oasst1 | {"prompt": {"role": "assistant"}} | a tree begins with a prompter
"""),
)
def test_a_malformed_row_is_named(name, record, message):
    with refused(f"row 1: .*{message}"):
        row = CHOICES | record if name == "arc_easy" else record
        list(load([row], format_of(name)))
