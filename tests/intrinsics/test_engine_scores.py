"""Slots and prompts as ids: exact probabilities along the trie of surfaces, equal to brute force; tokens as texts.

The model is small enough to enumerate: pieces of text as ids, probabilities from a hash of the prefix.
"""

import itertools
import math
import zlib

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from intrinsic_rows import CHAT as TEMPLATE

from selfrag.decoding.requests import Failed, Finish, Generated
from selfrag.engines.base import Limits, serve
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.errors import UserError
from selfrag.intrinsics.contract import ChatPrompt, Constraint, Message, Slot, State
from selfrag.intrinsics.execution.engine import label_ids, plan, tokens
from selfrag.intrinsics.rendering import Renderer
from selfrag.tokenization import HFTextCodec

SITE = State((Message("user", "Q?"),)).in_message("query", 0)
END, PROMPT = 0, "#"


class Pieces:
    """A `TextCodec` that takes the longest piece first; id 0 is EOS."""

    bos_ids = ()

    def __init__(self, *pieces):
        self.pieces = (PROMPT, *pieces)
        self.size = len(self.pieces) + 1

    def encode(self, text):
        ids = []
        while text:
            piece = max((p for p in self.pieces if text.startswith(p)), key=len)
            ids.append(self.pieces.index(piece) + 1)
            text = text[len(piece) :]
        return ids

    def decode(self, ids):
        return "".join(self.pieces[i - 1] for i in ids if i != END)


LETTERS = Pieces("a", "b", "c")
QUOTES = Pieces('"', "a", "n", '"a')


def probabilities(codec, prefix, seed=0):
    """Distribution of the next id."""
    draw = np.random.default_rng(zlib.crc32(np.array([seed, *prefix], dtype=np.int64).tobytes()))
    weights = draw.exponential(size=codec.size) ** 2
    return weights / weights.sum()


def brute_force(codec, seed, texts):
    """Probability that what follows the prompt begins with each text, over every sequence of three ids."""
    found, context = [0.0] * len(texts), codec.encode(PROMPT)
    for ids in itertools.product(range(codec.size), repeat=3):
        mass = math.prod(probabilities(codec, (*context, *ids[:i]), seed)[one] for i, one in enumerate(ids))
        # EOS ends the text.
        said = codec.decode(ids[: ids.index(END)] if END in ids else ids)
        found = [mass_ + mass * said.startswith(text) for mass_, text in zip(found, texts, strict=True)]
    return found


def score(codec, slot, *, seed=0, max_watch=128):
    def reply(request):
        row = probabilities(codec, request.prompt_ids, seed)
        return Reply((int(row.argmax()),), {0: dict(enumerate(row.tolist()))})

    model = ScriptedEngine(reply, END, Limits(1000, codec.size, max_watch))
    renderer = Renderer(None, codec, END)
    made = plan(renderer, slot, tuple(codec.encode(PROMPT)), adapter=None, most_watched=max_watch)
    return made, made.scores(serve(model, made.requests)), model


def prefix_free(texts):
    return not any(a != b and b.startswith(a) for a in texts for b in texts)


@settings(max_examples=40)
@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=5, unique=True).filter(prefix_free),
    st.integers(0, 1000),
)
def test_scores_are_those_of_brute_force(surfaces, seed):
    _, scores, model = score(LETTERS, Slot(tuple(surfaces), SITE), seed=seed)
    assert [math.exp(value) for value in scores] == pytest.approx(brute_force(LETTERS, seed, surfaces), rel=1e-4)
    assert all(request.max_tokens == 1 for request in model.requests)


def test_a_token_across_the_seam_counts_with_both_spellings():
    """The quote merged with the label: `"a` as one token, or `"` and `a`; the right value has both."""
    made, scores, _ = score(QUOTES, Slot(("a", "n"), SITE, '"'))
    assert sorted(made.paths) == sorted([(5,), (2, 3), (2, 4)])
    assert [math.exp(value) for value in scores] == pytest.approx(brute_force(QUOTES, 0, ('"a', '"n')), rel=1e-4)


def test_one_position_suffices_where_labels_are_tokens_unless_few_ids_can_be_watched():
    slot = Slot(("a", "b", "c"), SITE, "c")
    one, wide, _ = score(LETTERS, slot)
    assert [request.prompt_ids for request in one.requests] == [tuple(LETTERS.encode(PROMPT + "c"))]
    few, narrow, _ = score(LETTERS, slot, max_watch=2)
    assert len(few.requests) == 2
    assert narrow == pytest.approx(wide)


def test_what_failed_or_is_no_number_is_no_score():
    made, _, model = score(LETTERS, Slot(("a", "b"), SITE))
    [good] = serve(model, made.requests)
    assert made.scores([Failed("no")]) is None
    good.watched[0, 0] = math.nan
    assert made.scores([good]) is None


def chat_tokenizer(template=TEMPLATE):
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = template
    return tokenizer


RENDERER = Renderer.of(chat_tokenizer())
CODECS = {"byte-level": RENDERER.text, "sentencepiece": HFTextCodec(tiny.sentencepiece_tokenizer(reflection=False))}
CODEC = RENDERER.text


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        ("nothing at all", "drops or repeats"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "drops or repeats"),
        ("{{ raise_exception('roles must\nalternate') }}", "cannot be rendered: roles must alternate"),
    ],
)
def test_templates_that_cannot_be_used_are_named(template, said):
    with pytest.raises(UserError, match=said):
        Renderer.of(chat_tokenizer(template)).prompt(ChatPrompt((Message("user", "Q?"),)))


def generated(ids, others=()):
    """A result with the same alternatives at every position."""
    watched = np.tile(np.array(others, dtype=np.float32), (len(ids), 1))
    return Generated(tuple(ids), (-0.25,) * len(ids), watched, Finish.EOS)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=60)
@given(text=st.text(st.characters(blacklist_categories=("Cs",)), max_size=30))
def test_tokens_spell_the_text(codec, text):
    ids = codec.encode(text)
    found = tokens(codec, ids, generated(ids), ())
    assert len(found) == len(ids)
    assert "".join(token.token for token in found) == codec.decode(ids)
    assert all(token.logprob == -0.25 and token.top == () for token in found)


def test_a_character_of_several_tokens_belongs_to_the_last_and_broken_ones_end_after_four():
    ids = CODEC.encode("a𝄞b")
    assert [token.token for token in tokens(CODEC, ids, generated(ids), ())] == ["a", "", "", "", "𝄞", "b"]
    broken = [CODEC.encode("𝄞")[0]] * 6
    found = [token.token for token in tokens(CODEC, broken, generated(broken), ())]
    assert "\ufffd" in "".join(found)
    assert len(found) == 6


def test_labels_of_a_schema_are_watched_beginnings_first():
    properties = {"f": {"enum": ["faithful", "partial"]}, "ok": {"type": "boolean"}}
    schema = Constraint.json({"type": "array", "items": {"properties": properties}})
    ids = label_ids(CODEC, schema, 128)
    assert len(set(ids)) == len(ids) <= 128
    assert {"f", "p", "t", '"'} <= {CODEC.decode([one]) for one in ids}
    assert {one for label in ("faithful", "partial", "true", "false") for one in CODEC.encode(label)} <= set(ids)
    assert label_ids(CODEC, schema, 3) == ids[:3]
    assert label_ids(CODEC, Constraint.regex("a"), 10) == label_ids(CODEC, None, 10) == ()
