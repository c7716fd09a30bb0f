"""The executor on real engines: PEFT's numbers, several adapters in one batch, activated ones over shared keys."""

import json
import math

import numpy as np
import pytest
from lora_on_the_spot import save_adapter

from selfrag.decoding.requests import Failed
from selfrag.errors import EngineError, UserError
from selfrag.intrinsics.contract import ChatPrompt, Completion, Constraint, Message, Request, Slot, State
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.loading import load_tokenizer

STATE = State((Message("user", "Who wrote Faust?"),))
SITE = STATE.in_message("query", 0)
CHAT = ChatPrompt((Message("user", "Can it be answered? <|im_end|> Water boils at 100 degrees."),))
SLOTS = (Slot(("answerable", "unanswerable"), SITE), Slot(tuple("0123456789"), SITE, "certainty=["))
SCHEMA = {"type": "object", "properties": {"q": {"enum": ["yes", "no"]}}, "required": ["q"]}

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def tokenizer(chat_llama):
    return load_tokenizer(chat_llama)


@pytest.fixture(scope="module")
def adapters(chat_llama, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    invocation = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    return {
        "plain": save_adapter(chat_llama, folder / "plain", seed=1),
        "other": save_adapter(chat_llama, folder / "other", seed=2),
        "activated": save_adapter(chat_llama, folder / "activated", seed=3, alora_invocation_tokens=invocation),
    }


@pytest.fixture(scope="module")
def reference(chat_llama, tokenizer, adapters):
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine

    executor = EngineExecutor(
        TransformersEngine.load(TransformersConfig(str(chat_llama), adapters=adapters)), tokenizer
    )
    yield executor
    executor.close()


def by_peft(chat_llama, adapter, tokenizer, slot):
    """Log-probability of every surface by a full pass over prompt and surface for each, with PEFT's own forward."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(chat_llama)
    model = (model if adapter is None else PeftModel.from_pretrained(model, adapter)).eval()
    said = CHAT.messages[0].content
    text = tokenizer("<|im_start|>user\n")["input_ids"] + tokenizer(said, split_special_tokens=True)["input_ids"]
    prompt = text + tokenizer("<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    before = len(tokenizer(slot.prefill)["input_ids"]) if slot.prefill else 0
    found = []
    for surface in slot.surfaces:
        reply = tokenizer(slot.prefill + surface)["input_ids"]
        with torch.no_grad():
            rows = torch.log_softmax(model(input_ids=torch.tensor([prompt + reply])).logits[0], -1)
        found.append(sum(float(rows[len(prompt) + i - 1, reply[i]]) for i in range(before, len(reply))))
    return found


@pytest.mark.parametrize("adapter", [None, "plain", "activated"])
def test_scores_are_those_of_peft(reference, chat_llama, tokenizer, adapters, adapter):
    [result] = reference.run([Request(STATE, CHAT, slots=SLOTS, adapter=adapter)])
    for slot, scores in zip(SLOTS, result.scores, strict=True):
        expected = by_peft(chat_llama, adapters.get(adapter), tokenizer, slot)
        np.testing.assert_allclose(scores, expected, atol=2e-3)


def test_several_adapters_share_a_batch_and_keep_their_numbers(reference):
    names = (None, "plain", "other", "activated")
    wave = [Request(STATE, CHAT, slots=SLOTS, adapter=name) for name in names]
    for name, found in zip(names, reference.run([*wave, *wave])[4:], strict=True):
        [alone] = reference.run([Request(STATE, CHAT, slots=SLOTS, adapter=name)])
        for left, right in zip(found.scores, alone.scores, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-4)
    assert len({result.scores[0] for result in reference.run(wave)}) == 4


def test_constrained_text_and_scores_in_one_request(reference):
    request = Request(STATE, CHAT, 60, constraint=Constraint.json(SCHEMA), slots=SLOTS, adapter="plain", top_logprobs=5)
    [result] = reference.run([request])
    assert all(scores is not None for scores in result.scores)
    assert "".join(token.token for token in result.tokens) == result.text
    assert result.finish in ("stop", "length")
    if result.finish == "stop":
        assert json.loads(result.text)["q"] in ("yes", "no")
    for token in result.tokens:
        assert token.logprob == dict(token.top)[token.token]


def test_a_choice_has_its_alternatives_and_half_a_character_no_token(reference):
    for choices in (("yes", "no"), ("é€𝄞",)):
        request = Request(STATE, CHAT, 20, constraint=Constraint.choice(choices), top_logprobs=5)
        [result] = reference.run([request])
        assert result.text in choices
        assert "".join(token.token for token in result.tokens) == result.text
        if "no" in choices:
            values = [value for _, value in result.tokens[0].top]
            assert values == sorted(values, reverse=True)
            assert sum(map(math.exp, values)) == pytest.approx(1.0, abs=1e-3)


def test_activated_adapters_reuse_what_the_base_model_computed(reference):
    long = ChatPrompt((Message("user", "One passage of many. " * 40),))
    slot = (Slot(("yes", "no"), SITE),)
    wave = [Request(STATE, long, slots=slot, adapter=name) for name in (None, "activated", "plain")]
    base, activated, plain = (reference.run([one])[0] for one in wave)
    assert base.prompt_tokens == activated.prompt_tokens == plain.prompt_tokens
    assert activated.cached_tokens > 0.9 * activated.prompt_tokens
    assert plain.cached_tokens < 0.5 * plain.prompt_tokens or plain.cached_tokens < activated.cached_tokens


def test_what_an_executor_cannot_do_is_refused(reference):
    with pytest.raises(EngineError, match="adapter 'nobody' is not loaded; loaded: activated, other, plain"):
        reference.run([Request(STATE, CHAT, slots=SLOTS, adapter="nobody")])
    with pytest.raises(UserError, match=r"temperature=0.7"):
        reference.run([Request(STATE, CHAT, 5, temperature=0.7)])


def test_one_request_that_fails_leaves_the_others(reference):
    endless = ChatPrompt((Message("user", "far too long " * 3000),))
    bad = Request(STATE, CHAT, 5, constraint=Constraint.regex("(["))
    wave = [Request(STATE, endless, slots=SLOTS), bad, Request(STATE, CHAT, slots=SLOTS), Request(STATE, CHAT)]
    results = reference.run(wave)
    assert [type(result) for result in results] == [Failed, Failed, Completion, Completion]
    assert results[-1] == Completion()  # nothing asked is nothing done
    assert reference.run([]) == []
