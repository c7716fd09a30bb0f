"""The masking rule on examples small enough to check by eye, and the defects of the official code as named tests."""

from __future__ import annotations

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from lettered import CLOSE, EOS, IDS, OPEN, PROMPTING, letters, passage, row

from selfrag.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.training.rows import MASKED, Evidence, TargetLayout, Text, Token

M = MASKED
LAYOUT = TargetLayout(PROMPTING)


def test_defect_22_each_passage_is_masked_up_to_its_own_close():
    example = LAYOUT.example(row(passage("a"), "X", passage("b"), "Y"))

    bodies = [[OPEN, *letters(f"\n{text}"), CLOSE, ord(after)] for text, after in ("aX", "bY")]
    assert list(example.ids) == [1, ord("q"), *bodies[0], *bodies[1], EOS]
    assert list(example.labels) == [M, M, OPEN, M, M, CLOSE, ord("X"), OPEN, M, M, CLOSE, ord("Y"), EOS]


def test_defect_23_the_prompt_is_masked_to_its_last_token_and_no_further():
    example = LAYOUT.example(row("\x07\x08", instruction="\x05\x06"))

    assert example.ids == (1, 5, 6, 7, 8, 2)
    assert example.labels == (M, M, M, 7, 8, 2)


def test_defect_24_a_passage_too_long_is_shortened_closed_and_counted():
    target = ("[Retrieval]", passage("abcdefgh"), "[Relevant]", "XY", "[Utility:5]")
    whole = LAYOUT.example(row(*target))
    short = TargetLayout(PROMPTING, max_length=len(whole) - 6).example(row(*target))

    assert (whole.dropped_tokens, short.dropped_tokens) == (0, 6)
    assert list(short.ids) == [
        1, ord("q"), IDS["[Retrieval]"], OPEN, *letters("\nab"), CLOSE, IDS["[Relevant]"], *letters("XY"), IDS["[Utility:5]"], EOS,  # noqa: E501
    ]  # fmt: skip
    assert [label for label in short.labels if label != M] == [label for label in whole.labels if label != M]


def test_a_short_passage_stays_whole_and_long_ones_share_the_room():
    example = TargetLayout(PROMPTING, max_length=3 + 6 + 14).example(
        row(passage("abcdefghijk"), passage("z"), passage("lmnopqrstuv"))
    )
    closes = [i for i, label in enumerate(example.labels) if label == CLOSE]
    opens = [i for i, label in enumerate(example.labels) if label == OPEN]
    assert [close - start - 1 for start, close in zip(opens, closes, strict=True)] == [6, 2, 6]
    assert example.dropped_tokens == 12
    assert len(example) == 23


def test_a_target_that_cannot_fit_is_refused_by_name():
    with pytest.raises(UserError, match=r"row 'r7' needs 25 tokens .*limit is 10"):
        TargetLayout(PROMPTING, max_length=10).example(row("x" * 20, passage("long"), id="r7"))


parts = st.one_of(
    st.sampled_from(["[Retrieval]", "[Relevant]", "[Fully supported]", "[Utility:5]"]).map(Token),
    st.text(st.characters(min_codepoint=65, max_codepoint=90), min_size=1, max_size=8).map(Text),
    st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=40).map(passage),
)


@given(st.lists(parts, min_size=1, max_size=6), st.integers(70, 140), st.booleans())
def test_labels_are_the_target_without_passage_bodies_whatever_the_limit(target, limit, markers):
    layout = TargetLayout(PROMPTING, max_length=limit, learn_markers=markers)
    example = layout.example(row(*target))
    expected: list[int] = []
    for part in target:
        match part:
            case Token(token):
                expected.append(IDS[token])
            case Text(text):
                expected.extend(letters(text))
            case Evidence():
                expected.extend([OPEN, CLOSE] if markers else [])

    assert len(example) <= limit
    assert [label for label in example.labels if label != M] == [*expected, EOS]
    assert all(label in (M, i) for i, label in zip(example.ids, example.labels, strict=True))
    kept = sum(1 for i in example.ids if 97 <= i <= 122) + example.ids.count(ord("\n"))
    bodies = sum(len(part.passage.text) + 1 for part in target if isinstance(part, Evidence))
    assert kept - 1 + example.dropped_tokens == bodies  # the instruction is one small letter


@pytest.mark.parametrize("make", [tiny.byte_level_tokenizer, tiny.sentencepiece_tokenizer])
def test_hostile_text_adds_no_control_token_and_no_merge_crosses_the_prompt(make):
    tokenizer = make()
    layout = TargetLayout(Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer)))
    evil = "".join(TOKENS) + tokenizer.eos_token
    example = layout.example(row("[Retrieval]", passage(evil), "[Relevant]", "a" + evil, instruction="a" + evil))
    control = layout.prompting.vocabulary.control

    assert [tokenizer.convert_ids_to_tokens(i) for i in example.ids if i in control] == [
        "[Retrieval]", "<paragraph>", "</paragraph>", "[Relevant]", tokenizer.eos_token,
    ]  # fmt: skip
    prompt = layout.prompting.prompt("a" + evil)
    assert example.ids[: len(prompt)] == prompt
    assert set(example.labels[: len(prompt)]) == {M}
    assert example.labels[len(prompt)] == layout.prompting.vocabulary.ids["[Retrieval]"]
