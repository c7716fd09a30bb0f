import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import UserError
from retrieval.splitting import Splitting, count_words, sentence_finder, sentences, split

RULES = sentence_finder()
TEXTS = st.text(st.sampled_from(list("ab cd. \n\n!?京都。é\t\u2028\x1f#")), max_size=300) | st.text(max_size=200)


@given(TEXTS, st.integers(1, 12), st.integers(0, 4))
def test_every_character_is_kept_and_no_passage_is_over_budget(text, words, overlap):
    spans = split(text, Splitting(words, overlap), RULES)
    held = [False] * len(text)
    for start, end in spans:
        assert 0 <= start < end <= len(text)
        body = text[start:end]
        assert body == body.strip()
        assert 1 <= count_words(body) <= words
        held[start:end] = [True] * (end - start)
    assert all(kept or character.isspace() for kept, character in zip(held, text, strict=True))


def bodies(text, **options):
    return [text[start:end] for start, end in split(text, Splitting(**options), RULES)]


def test_sentences_are_packed_and_the_last_is_repeated():
    text = "One two three. Four five six. Seven eight nine. Ten eleven twelve."
    assert bodies(text, words=6, overlap=1) == [
        "One two three. Four five six.",
        "Four five six. Seven eight nine.",
        "Seven eight nine. Ten eleven twelve.",
    ]
    assert bodies(text, words=6, overlap=0) == ["One two three. Four five six.", "Seven eight nine. Ten eleven twelve."]
    assert bodies("a b c d e f g", words=3, overlap=0) == ["a b c", "d e f", "g"]
    text = "One two. Three four five six seven. Eight."  # overlap gives way to the budget
    assert bodies(text, words=5, overlap=2) == ["One two.", "Three four five six seven.", "Eight."]


def test_a_blank_line_ends_a_sentence_but_a_line_end_does_not():
    text = "A title without a full stop\n\nThe body goes\non here."
    found = [text[start:end] for start, end in split(text, Splitting(6, 0), RULES)]
    assert found == ["A title without a full stop", "The body goes\non here."]


def test_scripts_without_spaces_are_counted_by_character_and_a_huge_word_is_cut():
    assert count_words("東京都 hello") == 4
    assert all(len(body) <= 10 for body in bodies("東" * 95, words=10, overlap=0))
    parts = bodies("x" * 250_000, words=100, overlap=0)
    assert (sum(map(len, parts)), max(map(len, parts)) <= 6400) == (250_000, True)


def test_lone_surrogates_do_not_stop_the_sentencizer_and_keep_the_offsets():
    text = "One \ud800 is. \udc00\ud800 Two."
    assert [text[start:end] for start, end in sentences(text, sentence_finder())] == [
        "One \ud800 is.",
        "\udc00\ud800 Two.",
    ]


def test_an_unknown_spacy_model_is_named_with_the_command():
    with pytest.raises(UserError, match="python -m spacy download no_such_model"):
        sentence_finder("no_such_model")
