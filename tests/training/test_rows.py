"""Rows in files, and the masking rule on examples small enough to check by eye, with the official code's defects."""

import json

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from json_files import parse_table
from lettered import CLOSE, EOS, IDS, OPEN, PROMPTING, letters, passage, row
from refusals import refused

from retrieval.passage import Passage
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.training.rows import (
    MASKED,
    REFLECTION_TOKENS,
    TargetEvidence,
    TargetLayout,
    TargetText,
    TargetToken,
    TrainingRow,
    read_rows,
    write_rows,
)

M = MASKED
LAYOUT = TargetLayout(PROMPTING)
GOOD = dict(
    parse_table("""
id | a
source | nq/gold
instruction | who?
target | [{"token": "[Retrieval]"}, {"passage": {"id": "p", "title": "", "text": "T"}}, {"text": "me"}]
""")
)

anything = st.text(st.characters(exclude_categories=["Cs"]))
words = anything.filter(str.strip)
parts = st.one_of(
    st.sampled_from(sorted(REFLECTION_TOKENS)).map(TargetToken),
    words.map(TargetText),
    st.builds(
        lambda i, t, title: TargetEvidence(Passage(i, t, title)), words, words, anything
    ),
)
row_values = st.builds(
    TrainingRow,
    words,
    words,
    words,
    st.lists(parts, min_size=1).map(tuple),
    st.floats(0.01, 100),
)


@given(row=row_values)
def test_what_is_written_is_read_back(tmp_path_factory, row):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    assert write_rows(path, [row]) == 1
    assert list(read_rows(path)) == [row]


@pytest.mark.parametrize(
    "change, named",
    [
        ({"id": "a"}, "id 'a' occurs twice"),
        ({"source": 3}, "'source'"),
        ({"extra": 1}, "'extra' is unknown"),
        ({"target": []}, "'target'"),
        ({"target": [{"token": "[relevant]"}]}, "[relevant]"),
        ({"target": [{"text": "a", "token": "[Relevant]"}]}, "exactly one"),
        (
            {"target": [{"passage": {"id": "p", "text": "T"}}]},
            "'target.0.passage.title' is missing",
        ),
        ({"weight": 0}, "'weight'"),
        ({"weight": float("nan")}, "'weight'"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, change, named):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"id": "b"} | change) + "\n"
    )
    with refused() as caught:
        list(read_rows(path))
    assert f"{path}:2: " in str(caught.value)
    assert named in str(caught.value)


def test_defect_22_each_passage_is_masked_up_to_its_own_close():
    example = LAYOUT.example(row(passage("a"), "X", passage("b"), "Y"))

    bodies = [
        [OPEN, *letters(f"\n{text}"), CLOSE, ord(after)] for text, after in ("aX", "bY")
    ]
    assert list(example.ids) == [1, ord("q"), *bodies[0], *bodies[1], EOS]
    assert list(example.labels) == [
        M,
        M,
        OPEN,
        M,
        M,
        CLOSE,
        ord("X"),
        OPEN,
        M,
        M,
        CLOSE,
        ord("Y"),
        EOS,
    ]


def test_defect_23_the_prompt_is_masked_to_its_last_token_and_no_further():
    example = LAYOUT.example(row("\x07\x08", instruction="\x05\x06"))

    assert example.ids == (1, 5, 6, 7, 8, 2)
    assert example.labels == (M, M, M, 7, 8, 2)


def test_defect_24_a_passage_too_long_is_shortened_closed_and_counted():
    target = ("[Retrieval]", passage("abcdefgh"), "[Relevant]", "XY", "[Utility:5]")
    whole = LAYOUT.example(row(*target))
    short = TargetLayout(PROMPTING, max_length=len(whole) - 6).example(row(*target))

    assert whole.dropped_tokens == 0
    assert short.dropped_tokens == 6
    assert list(short.ids) == [
        1, ord("q"), IDS["[Retrieval]"], OPEN, *letters("\nab"), CLOSE, IDS["[Relevant]"], *letters("XY"), IDS["[Utility:5]"], EOS,  # noqa: E501
    ]  # fmt: skip
    assert [label for label in short.labels if label != M] == [
        label for label in whole.labels if label != M
    ]


def test_a_short_passage_stays_whole_long_ones_share_the_room_and_nothing_else_is_cut():
    target = (passage("abcdefghijk"), passage("z"), passage("lmnopqrstuv"))
    example = TargetLayout(PROMPTING, max_length=3 + 6 + 14).example(row(*target))
    closes = [i for i, label in enumerate(example.labels) if label == CLOSE]
    opens = [i for i, label in enumerate(example.labels) if label == OPEN]
    assert [close - start - 1 for start, close in zip(opens, closes, strict=True)] == [
        6,
        2,
        6,
    ]
    assert example.dropped_tokens == 12
    assert len(example) == 23
    with refused(r"'r7' needs 25 tokens .*10"):
        TargetLayout(PROMPTING, max_length=10).example(
            row("x" * 20, passage("long"), id="r7")
        )


@given(st.lists(parts, min_size=1, max_size=6), st.integers(70, 140), st.booleans())
def test_labels_are_the_target_without_passage_bodies_whatever_the_limit(
    target, limit, markers
):
    texts = [part.text if isinstance(part, TargetText) else "" for part in target]
    layout = TargetLayout(
        PROMPTING, max_length=limit + sum(map(len, texts)), learn_markers=markers
    )
    example = layout.example(row(*target))
    expected = []
    for part in target:
        match part:
            case TargetToken(token):
                expected.append(IDS[token])
            case TargetText(text):
                expected.extend(letters(text))
            case TargetEvidence():
                expected.extend([OPEN, CLOSE] if markers else [])

    assert len(example) <= layout.max_length
    assert [label for label in example.labels if label != M] == [*expected, EOS]
    assert all(
        label in (M, i) for i, label in zip(example.ids, example.labels, strict=True)
    )


@pytest.mark.parametrize(
    "make", [tiny.byte_level_tokenizer, tiny.sentencepiece_tokenizer]
)
def test_hostile_text_adds_no_control_token_and_no_merge_crosses_the_prompt(make):
    tokenizer = make()
    layout = TargetLayout(Prompting.from_tokenizer(tokenizer))
    evil = "".join(TOKENS) + tokenizer.eos_token
    example = layout.example(
        row(
            "[Retrieval]",
            passage(evil),
            "[Relevant]",
            "a" + evil,
            instruction="a" + evil,
        )
    )
    control = layout.prompting.vocabulary.control

    assert [tokenizer.convert_ids_to_tokens(i) for i in example.ids if i in control] == [
        "[Retrieval]", "<paragraph>", "</paragraph>", "[Relevant]", tokenizer.eos_token,
    ]  # fmt: skip
    prompt = layout.prompting.prompt("a" + evil)
    assert example.ids[: len(prompt)] == prompt
    assert set(example.labels[: len(prompt)]) == {M}
    assert example.labels[len(prompt)] == layout.prompting.vocabulary.ids["[Retrieval]"]
