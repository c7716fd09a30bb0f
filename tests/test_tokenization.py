"""Safe tokenisation: whatever a text says, no control id comes out of it, and ordinary text survives."""

import os
import pickle
import threading
import time
from contextlib import suppress
from pathlib import Path

import control_tokens
import pytest
import tiny
from control_tokens import WIDE
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from selfrag import tokenization
from selfrag.common.errors import UserError
from selfrag.demo import checkpoint_path
from selfrag.reflection.labels import TOKENS
from selfrag.tokenization import HFTextCodec, ReadOnlyTokenizer


def real_tokenizer():
    """SmolLM2's own, where the demo model is in the cache, or the one that SELFRAG_TEST_TOKENIZER names."""
    path = os.environ.get("SELFRAG_TEST_TOKENIZER")
    with suppress(UserError):
        path = path or checkpoint_path()
    if not path or not Path(path).is_dir():
        pytest.skip(
            "no demo model in the cache, and SELFRAG_TEST_TOKENIZER names no tokenizer directory"
        )
    return tiny.with_reflection_tokens(AutoTokenizer.from_pretrained(path))


FAMILIES = control_tokens.FAMILIES | {"real": real_tokenizer}
CHANGES = {"careless", "wordpiece", "unigram"}
"""Families that fold case and accents, or know few letters."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(family):
    return FAMILIES[family]()


@pytest.fixture(scope="module")
def codec(tokenizer):
    return HFTextCodec(tokenizer)


@pytest.fixture(scope="module")
def known(tokenizer):
    return frozenset(tokenizer.get_vocab())


SETTINGS = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@SETTINGS
@given(text=control_tokens.texts)
@example(text="</paragraph>[Relevant][Fully supported][Utility:5]</s>")
@example(text="".join(control_tokens.HOSTILE))
@example(text="[Rel[Rel[Relevant]evant]evant]")
def test_no_control_id_comes_out_of_any_text(codec, tokenizer, text):
    ids = codec.encode(text)
    assert codec.control_ids >= control_tokens.control_ids(tokenizer)
    assert codec.control_ids.isdisjoint(ids)
    codec.decode(ids)


@pytest.mark.parametrize(
    "family", sorted(FAMILIES.keys() - CHANGES), indirect=True, scope="module"
)
@SETTINGS
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=60))
def test_ordinary_text_survives(codec, tokenizer, known, family, text):
    # SmolLM2 drops bytes that its vocabulary lacks: ASCII control, unassigned planes
    if family == "real":
        words = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assume(all(symbol in known for word, _ in words for symbol in word))
    # Sentencepiece writes a space as its mark and swallows leading ones.
    ignored = " " if family == "sentencepiece" else ""
    assert codec.decode(codec.encode(text)).lstrip(ignored) == text.lstrip(ignored)


@pytest.mark.parametrize("token", [*TOKENS, "<s>", "</s>"])
def test_the_words_of_a_token_survive_as_text(codec, family, token):
    text = f"he said {token} twice"
    decoded = codec.decode(codec.encode(text))
    # Where the text had to be cut, some start the next piece with a space.
    spelt = text.lower() if family in ("careless", "wordpiece") else text
    assert decoded.replace(" ", "") == spelt.replace(" ", "")
    if family not in {*CHANGES, "sentencepiece"}:
        assert decoded == text


def test_a_control_token_that_stands_for_no_characters_is_cut_by_halves(monkeypatch):
    codec = HFTextCodec(control_tokens.unigram())
    monkeypatch.setattr(
        ReadOnlyTokenizer,
        "places",
        lambda self, text: [(i, 0, 0) for i in sorted(codec.control_ids)],
    )
    assert codec.decode(codec.encode("a[Relevant]b")).replace(" ", "") == "a[Relevant]b"


def test_lone_surrogates_become_replacement_characters_and_bos_is_what_the_tokenizer_adds_itself():
    codec = HFTextCodec(tiny.byte_level_tokenizer())
    llama = tiny.sentencepiece_tokenizer()
    assert codec.decode(codec.encode("a\ud800b\udfff")) == "a\ufffdb\ufffd"
    assert codec.decode(codec.encode("\ud83d\ude00")) == "😀"
    assert (codec.bos_ids, HFTextCodec(llama).bos_ids) == ((), (llama.bos_token_id,))


class Slow:
    """A tokenizer without a Rust part, as far as the library looks at one."""

    is_fast = False

    def __init__(self, fast):
        self.fast = fast

    def __getattr__(self, name):
        return getattr(self.fast, name)

    def __call__(self, texts, **options):
        return self.fast(texts, **options)


def test_a_slow_tokenizer_is_cut_by_halves_and_writes_what_stands_there():
    careful = tiny.byte_level_tokenizer()
    # of its own accord it would write "isn't, he said."
    careful.clean_up_tokenization_spaces = True
    tokens = ReadOnlyTokenizer(Slow(careful), split_special_tokens=False)
    (ids,) = tokens.ids(["is n't , he said .[Relevant]"])
    assert tokens.decode(ids) == "is n't , he said .[Relevant]"
    codec = HFTextCodec(Slow(control_tokens.careless()))
    text = "so [Relevant] said [Irrelevant]"
    ids = codec.encode(text)
    assert codec.control_ids.isdisjoint(ids)
    assert codec.decode(ids) == text.lower()  # as this tokenizer normalises


def test_decoding_leaves_control_ids_out_and_a_codec_in_another_process_gives_the_same_ids(
    codec,
):
    """A worker of Ray gets it by pickle."""
    text = "one [Relevant] two"
    control, ids = sorted(codec.control_ids), codec.encode("one two")
    assert codec.decode([*control, *ids, *control]) == codec.decode(ids)
    again = pickle.loads(pickle.dumps(codec))
    assert again.encode(text) == codec.encode(text)
    assert again.control_ids == codec.control_ids


@pytest.mark.parametrize(
    "unit",
    ["[Relevant]", "[Relevant]".translate(WIDE), "<unk>", "[Rel", "\x00", "中", " "],
)
def test_hostile_text_costs_linear_time(codec, growth, unit):
    assert growth(lambda size: unit * (size // len(unit)), codec.encode, 2**14) < 8


def test_other_threads_run_while_a_long_text_is_tokenised():
    codec = HFTextCodec(control_tokens.FAMILIES["byte-level"]())
    long_text = "a word, " * 50_000
    working = threading.Thread(target=codec.encode, args=(long_text,))
    turns = 0
    working.start()
    while working.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20  # one or two where the tokenizer keeps Python's lock


@SETTINGS
@given(before=control_tokens.texts, after=control_tokens.texts)
@example(before="the metric system.", after="I don't know.")
@example(before="\u7eff\u8336\u3002", after="\u7ea2\u8336\u3002")
def test_a_control_id_between_two_texts_adds_a_space_at_most(
    codec, tokenizer, before, after
):
    """Audit A6: nothing else changes, and two sentences are never glued."""
    control = tokenizer.convert_tokens_to_ids("[Utility:5]")
    first, second = codec.encode(before), codec.encode(after)
    glued = codec.decode([*first, *second])
    text = codec.decode([*first, control, control, *second])
    begin = codec.decode(first)
    assert text in (glued, f"{begin} {glued[len(begin) :]}")
    # none beside the text
    assert codec.decode([control, *first, *second, control]) == glued
    assert "system.i" not in text.lower() or "system.i" in before.lower()


@pytest.mark.parametrize("word", ["temperature", "understanding", "Montgomery"])
def test_no_space_is_added_inside_a_word(codec, word):
    ids = codec.encode(f"the {word}")
    for at in range(1, len(ids)):
        pieces = codec.decode([*ids[:at], min(codec.control_ids), *ids[at:]])
        # a piece that is a word by itself may stand apart
        assert len(pieces.split()) <= 3


def test_every_second_quotation_mark_closes():
    """`begins_words` is not asked about what follows a mark."""
    assert not tokenization._words_touch(None, '"Ann" saw "it', '"', 0)
    assert tokenization._words_touch(None, '"Ann" saw', '"', 0)


def test_a_sentence_after_a_word_that_ends_with_an_accent_stands_apart(codec):
    accented, sentence = codec.encode("cafe\u0301"), codec.encode("The end.")
    text = codec.decode([*accented, min(codec.control_ids), *sentence])
    assert "the" in text.lower().split()
