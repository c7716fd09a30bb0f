"""Slots and prompts as ids: exact probabilities along the trie of surfaces, equal to brute force and to PEFT.

The first model is small enough to enumerate: pieces of text as ids, probabilities from a hash of the prefix.
"""

import itertools
import json
import math
import zlib
from functools import cache

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from intrinsic_rows import CHAT as TEMPLATE
from lora_on_the_spot import save_adapter
from refusals import refused
from scripted import ScriptedEngine, ScriptedReply

from selfrag.common.errors import EngineError
from selfrag.engines.base import EngineLimits
from selfrag.judges.engine import EngineExecutor, label_ids, plan, tokens
from selfrag.judges.rendering import Renderer
from selfrag.judges.wire import ChatPrompt, Completion, ModelRequest, Slot
from selfrag.loading import load_training_tokenizer
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.requests import Constraint, Failed, Finish, Generated, ask
from selfrag.runtime import finish
from selfrag.tokenization import HFTextCodec

STATE = JudgeInput((Message("user", "Who wrote Faust?"),))
SITE = STATE.in_message("query", 0)
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


@cache
def probabilities(codec, prefix, seed=0):
    """Distribution of the next id."""
    draw = np.random.default_rng(
        zlib.crc32(np.array([seed, *prefix], dtype=np.int64).tobytes())
    )
    weights = draw.exponential(size=codec.size) ** 2
    return weights / weights.sum()


def brute_force(codec, seed, texts):
    """Probability that what follows the prompt begins with each text, over every sequence of three ids."""
    sums, context = [0.0] * len(texts), codec.encode(PROMPT)
    for ids in itertools.product(range(codec.size), repeat=3):
        mass = math.prod(
            probabilities(codec, (*context, *ids[:i]), seed)[token_id]
            for i, token_id in enumerate(ids)
        )
        # EOS ends the text.
        said = codec.decode(ids[: ids.index(END)] if END in ids else ids)
        sums = [
            so_far + mass * said.startswith(text)
            for so_far, text in zip(sums, texts, strict=True)
        ]
    return sums


def score(codec, slot, *, seed=0, max_watch=128):
    def reply(request):
        row = probabilities(codec, tuple(request.prompt_ids), seed)
        return ScriptedReply((int(row.argmax()),), {0: dict(enumerate(row.tolist()))})

    model = ScriptedEngine(reply, END, EngineLimits(1000, codec.size, max_watch))
    renderer = Renderer(None, codec, END)
    made = plan(
        renderer,
        slot,
        tuple(codec.encode(PROMPT)),
        adapter=None,
        most_watched=max_watch,
    )
    return made, made.scores(finish(ask(list(made.requests)), model)), model


def prefix_free(texts):
    return not any(a != b and b.startswith(a) for a in texts for b in texts)


@settings(max_examples=25)
@given(
    st.lists(
        st.text("abc", min_size=1, max_size=3), min_size=2, max_size=5, unique=True
    ).filter(prefix_free),
    st.integers(0, 1000),
)
def test_scores_are_those_of_brute_force(surfaces, seed):
    _, scores, model = score(LETTERS, Slot(tuple(surfaces), SITE), seed=seed)
    assert [math.exp(value) for value in scores] == pytest.approx(
        brute_force(LETTERS, seed, surfaces), rel=1e-4
    )
    assert all(request.max_tokens == 1 for request in model.requests)


def test_a_token_across_the_seam_counts_with_both_spellings():
    """The quote merged with the label: `"a` as one token, or `"` and `a`; the right value has both."""
    made, scores, _ = score(QUOTES, Slot(("a", "n"), SITE, '"'))
    assert sorted(made.paths) == sorted([(5,), (2, 3), (2, 4)])
    assert [math.exp(value) for value in scores] == pytest.approx(
        brute_force(QUOTES, 0, ('"a', '"n')), rel=1e-4
    )


def test_one_position_suffices_where_labels_are_tokens_unless_few_ids_can_be_watched():
    slot = Slot(("a", "b", "c"), SITE, "c")
    single, wide, _ = score(LETTERS, slot)
    assert [request.prompt_ids for request in single.requests] == [
        tuple(LETTERS.encode(PROMPT + "c"))
    ]
    few, narrow, _ = score(LETTERS, slot, max_watch=2)
    assert len(few.requests) == 2
    assert narrow == pytest.approx(wide)


def test_what_failed_or_is_no_number_is_no_score():
    made, _, model = score(LETTERS, Slot(("a", "b"), SITE))
    [good] = finish(ask(list(made.requests)), model)
    assert made.scores([Failed("no")]) is None
    good.watched[0, 0] = math.nan
    assert made.scores([good]) is None


def chat_tokenizer(template=TEMPLATE):
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = template
    return tokenizer


RENDERER = Renderer.of(chat_tokenizer())
CODECS = {
    "byte-level": RENDERER.text,
    "sentencepiece": HFTextCodec(tiny.sentencepiece_tokenizer(reflection=False)),
}
CODEC = RENDERER.text


@pytest.mark.parametrize(
    "template, said",
    [
        (None, "no chat template"),
        ("nothing at all", "drops or repeats"),
        (
            "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
            "drops or repeats",
        ),
        (
            "{{ raise_exception('roles must\nalternate\x1b\u202e') }}",
            "cannot be rendered: roles must alternate\ufffd\ufffd",
        ),
    ],
)
def test_templates_that_cannot_be_used_are_named(template, said):
    with refused(said):
        Renderer.of(chat_tokenizer(template)).prompt(
            ChatPrompt((Message("user", "Q?"),))
        )


def generated(ids, others=()):
    """A result with the same alternatives at every position."""
    watched = np.tile(np.array(others, dtype=np.float32), (len(ids), 1))
    return Generated(tuple(ids), (-0.25,) * len(ids), watched, Finish.EOS)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=60)
@given(text=st.text(st.characters(blacklist_categories=("Cs",)), max_size=30))
def test_tokens_spell_the_text(codec, text):
    ids = codec.encode(text)
    spelled = tokens(codec, ids, generated(ids), ())
    assert len(spelled) == len(ids)
    assert "".join(token.token for token in spelled) == codec.decode(ids)
    assert all(token.logprob == -0.25 and token.top == () for token in spelled)


def test_a_character_of_several_tokens_belongs_to_the_last_and_broken_ones_end_after_four():
    ids = CODEC.encode("a𝄞b")
    assert [token.token for token in tokens(CODEC, ids, generated(ids), ())] == [
        "a",
        "",
        "",
        "",
        "𝄞",
        "b",
    ]
    broken = [CODEC.encode("𝄞")[0]] * 6
    spelled = [token.token for token in tokens(CODEC, broken, generated(broken), ())]
    assert "\ufffd" in "".join(spelled)
    assert len(spelled) == 6


def test_labels_of_a_schema_are_watched_beginnings_first():
    properties = {"f": {"enum": ["faithful", "partial"]}, "ok": {"type": "boolean"}}
    schema = Constraint.json({"type": "array", "items": {"properties": properties}})
    ids = label_ids(CODEC, schema, 128)
    assert len(set(ids)) == len(ids) <= 128
    assert {"f", "p", "t", '"'} <= {CODEC.decode([token_id]) for token_id in ids}
    assert {
        token_id
        for label in ("faithful", "partial", "true", "false")
        for token_id in CODEC.encode(label)
    } <= set(ids)
    assert label_ids(CODEC, schema, 3) == ids[:3]
    assert (
        label_ids(CODEC, Constraint.regex("a"), 10) == label_ids(CODEC, None, 10) == ()
    )


# --- On real engines: PEFT's numbers, several adapters in one batch, activated ones over shared keys ---------------

CHAT = ChatPrompt(
    (Message("user", "Can it be answered? <|im_end|> Water boils at 100 degrees."),)
)
SLOTS = (
    Slot(("answerable", "unanswerable"), SITE),
    Slot(tuple("0123456789"), SITE, "certainty=["),
)
SCHEMA = {
    "type": "object",
    "properties": {"q": {"enum": ["yes", "no"]}},
    "required": ["q"],
}


@pytest.fixture(scope="module")
def tokenizer(chat_llama):
    return load_training_tokenizer(chat_llama)


@pytest.fixture(scope="module")
def adapters(chat_llama, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    invocation = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)[
        "input_ids"
    ]
    return {
        "plain": save_adapter(chat_llama, folder / "plain", seed=1),
        "other": save_adapter(chat_llama, folder / "other", seed=2),
        "activated": save_adapter(
            chat_llama, folder / "activated", seed=3, alora_invocation_tokens=invocation
        ),
    }


@pytest.fixture(scope="module")
def reference(chat_llama, tokenizer, adapters):
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine

    executor = EngineExecutor(
        TransformersEngine.load(TransformersConfig(str(chat_llama), adapters=adapters)),
        tokenizer,
    )
    yield executor
    executor.close()


def by_peft(chat_llama, adapter, tokenizer, slot):
    """Log-probability of every surface by a full pass over prompt and surface for each, with PEFT's own forward."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(chat_llama)
    model = (
        model if adapter is None else PeftModel.from_pretrained(model, adapter)
    ).eval()
    said = CHAT.messages[0].content
    text = (
        tokenizer("<|im_start|>user\n")["input_ids"]
        + tokenizer(said, split_special_tokens=True)["input_ids"]
    )
    prompt = text + tokenizer("<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    before = len(tokenizer(slot.prefill)["input_ids"]) if slot.prefill else 0
    scores = []
    for surface in slot.surfaces:
        reply = tokenizer(slot.prefill + surface)["input_ids"]
        with torch.no_grad():
            rows = torch.log_softmax(
                model(input_ids=torch.tensor([prompt + reply])).logits[0], -1
            )
        scores.append(
            sum(
                float(rows[len(prompt) + i - 1, reply[i]])
                for i in range(before, len(reply))
            )
        )
    return scores


@pytest.mark.engine
@pytest.mark.parametrize("adapter", [None, "plain", "activated"])
def test_scores_are_those_of_peft(reference, chat_llama, tokenizer, adapters, adapter):
    [result] = reference.run([ModelRequest(STATE, CHAT, slots=SLOTS, adapter=adapter)])
    for slot, scores in zip(SLOTS, result.scores, strict=True):
        expected = by_peft(chat_llama, adapters.get(adapter), tokenizer, slot)
        np.testing.assert_allclose(scores, expected, atol=2e-3)


@pytest.mark.engine
def test_constrained_text_and_scores_in_one_request(reference):
    request = ModelRequest(
        STATE,
        CHAT,
        60,
        constraint=Constraint.json(SCHEMA),
        slots=SLOTS,
        adapter="plain",
        top_logprobs=5,
    )
    [result] = reference.run([request])
    assert all(scores is not None for scores in result.scores)
    assert "".join(token.token for token in result.tokens) == result.text
    assert result.finish in ("stop", "length")
    if result.finish == "stop":
        assert json.loads(result.text)["q"] in ("yes", "no")
    for token in result.tokens:
        assert token.logprob == dict(token.top)[token.token]


@pytest.mark.engine
def test_a_choice_has_its_alternatives_and_half_a_character_no_token(reference):
    for choices in (("yes", "no"), ("é€𝄞",)):
        request = ModelRequest(
            STATE, CHAT, 20, constraint=Constraint.choice(choices), top_logprobs=5
        )
        [result] = reference.run([request])
        assert result.text in choices
        assert "".join(token.token for token in result.tokens) == result.text
        if "no" in choices:
            values = [value for _, value in result.tokens[0].top]
            assert values == sorted(values, reverse=True)
            assert sum(map(math.exp, values)) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.engine
def test_what_an_executor_cannot_do_is_refused(reference):
    with pytest.raises(
        EngineError,
        match="adapter 'nobody' is not loaded; loaded: activated, other, plain",
    ):
        reference.run([ModelRequest(STATE, CHAT, slots=SLOTS, adapter="nobody")])
    with refused(r"temperature=0.7"):
        reference.run([ModelRequest(STATE, CHAT, 5, temperature=0.7)])


@pytest.mark.engine
def test_the_inside_of_a_reply_has_a_row_for_each_of_its_tokens(reference):
    request = ModelRequest(STATE, CHAT, 5, temperature=1.0, seed=3, prefill="She said:")
    [drawn, again] = reference.run([request, request])
    assert drawn.text == again.text
    [inside] = finish(reference.inspect_steps([request]), reference.engine)
    assert "".join(inside.texts).endswith("She said:")
    assert inside.attention.shape == (len(inside.entropies), len(inside.texts))
    assert inside.attention.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert inside.state.ndim == 1


@pytest.mark.engine
def test_one_request_that_fails_leaves_the_others(reference):
    endless = ChatPrompt((Message("user", "far too long " * 3000),))
    bad = ModelRequest(STATE, CHAT, 5, constraint=Constraint.regex("(["))
    wave = [
        ModelRequest(STATE, endless, slots=SLOTS),
        bad,
        ModelRequest(STATE, CHAT, slots=SLOTS),
        ModelRequest(STATE, CHAT),
    ]
    results = reference.run(wave)
    assert [type(result) for result in results] == [
        Failed,
        Failed,
        Completion,
        Completion,
    ]
    assert results[-1] == Completion()  # nothing asked is nothing done
    assert reference.run([]) == []
