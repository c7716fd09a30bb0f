"""Constraints: one meaning in every engine; what cannot be compiled fails its own request and nothing else."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from pump import prompt, serve

from selfrag.decoding.requests import Constraint, Failed, Finish, Form, Generate, Generated
from selfrag.engines.base import Limits, refusal
from selfrag.engines.wire import TOKENS, BadReplyError

SCHEMA = {
    "type": "object",
    "properties": {"r": {"type": "integer", "minimum": 0, "maximum": 9}, "f": {"enum": ["yes", "no"]}},
    "required": ["r", "f"],
}
LABELS = ("answerable", 'un"answerable"\n', "é")
FORMS = (Constraint.json(SCHEMA), Constraint.regex(r"[0-9]{2}-(a|b)"), Constraint.choice(LABELS))
BAD = (Constraint.regex("(["), Constraint.json({"type": "nonsense"}))


def test_a_constraint_is_a_value():
    assert Constraint.json(SCHEMA) == Constraint.json(json.loads(json.dumps(SCHEMA)))
    assert len({*FORMS, *FORMS}) == 3
    assert Constraint.json(SCHEMA).value == SCHEMA
    assert Constraint.regex("a+").as_structured_outputs() == {"regex": "a+"}
    assert Constraint.choice(LABELS).as_structured_outputs() == {"choice": list(LABELS)}
    assert Constraint.json({"type": "object"}).as_structured_outputs() == {"json": {"type": "object"}}
    with pytest.raises(ValueError, match="no texts"):
        Constraint.choice(())


def test_two_masks_exclude_each_other():
    request = Generate((1,), 1, allowed_ids=(2,), constraint=FORMS[0])
    assert "exclude" in (refusal(request, Limits(10, 10)) or "")


def test_over_http_it_is_structured_outputs_and_nothing_older():
    sampling = TOKENS.body(Generate((1,), 4, constraint=FORMS[0]), "m", "id", 100)["sampling_params"]
    assert sampling["structured_outputs"] == {"json": SCHEMA}
    assert not [name for name in sampling if name.startswith("guided")]


def holds(constraint: Constraint, text: str) -> bool:
    if constraint.form is Form.JSON:
        value = json.loads(text)
        return value["r"] in range(10) and value["f"] in ("yes", "no") and len(value) == 2
    if constraint.form is Form.REGEX:
        return re.fullmatch(constraint.text, text) is not None
    return text in constraint.value


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def engine(request, tiny_llama):
    if request.param == "transformers":
        from selfrag.engines.transformers import TransformersConfig, TransformersEngine

        pytest.importorskip("xgrammar", reason="xgrammar is not installed")
        made = TransformersEngine.load(TransformersConfig(str(tiny_llama)))
    else:
        pytest.importorskip("vllm", reason="vllm is not installed")
        from selfrag.engines.vllm import VLLMConfig, VLLMEngine

        made = VLLMEngine.load(VLLMConfig(str(tiny_llama), max_model_len=512, dtype="float32", kv_cache_gib=0.05))
    yield made
    made.close()


@pytest.fixture(scope="module")
def tokenizer(tiny_llama):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_llama)


@pytest.mark.engine
def test_random_models_write_what_the_constraint_says(engine, tokenizer):
    wave = [Generate(prompt(20, start), 60, constraint=form) for start in range(3) for form in FORMS]
    for request, result in zip(wave, serve(engine, wave), strict=True):
        assert isinstance(result, Generated), result
        text = tokenizer.decode(result.token_ids, skip_special_tokens=True)
        if result.finish is Finish.EOS:
            assert holds(request.constraint, text), text
        else:  # JSON allows any white space, which a random model may love
            assert request.constraint.form is Form.JSON
            assert text.lstrip().startswith("{")


@pytest.mark.engine
def test_log_probabilities_are_those_of_the_allowed_tokens(engine, tokenizer):
    digits = tuple(tokenizer.convert_tokens_to_ids(list("0123456789")))
    watch, digit = (*digits, 3), Constraint.choice([*"0123456789"])
    free, bound = serve(
        engine, [Generate(prompt(20), 1, watch_ids=watch), Generate(prompt(20), 1, watch_ids=watch, constraint=digit)]
    )
    allowed = free.watched[0, :10] - np.logaddexp.reduce(free.watched[0, :10])
    np.testing.assert_allclose(bound.watched[0, :10], allowed, atol=1e-4)
    assert bound.watched[0, 10] == -np.inf
    assert bound.token_logprobs[0] == pytest.approx(float(allowed.max()), abs=1e-4)


@pytest.mark.engine
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_what_cannot_be_compiled_fails_alone(engine, bad):
    results = serve(engine, [Generate(prompt(8), 3, constraint=bad), Generate(prompt(8), 3)])
    assert isinstance(results[0], Failed)
    assert "\n" not in results[0].reason
    assert isinstance(results[1], Generated)


@pytest.mark.engine
def test_a_stop_id_may_follow_where_the_form_is_complete(engine, tokenizer):
    stop = tokenizer.bos_token_id
    [result] = serve(engine, [Generate(prompt(9), 30, stop_ids=(stop,), constraint=FORMS[2])])
    assert result.finish in (Finish.STOP, Finish.EOS)
    assert holds(FORMS[2], tokenizer.decode(result.token_ids, skip_special_tokens=True))


@pytest.mark.engine
def test_a_server_obeys_too(vllm_server, tokenizer):
    from selfrag.engines.http import HTTPConfig, HTTPEngine

    engine = HTTPEngine.load(HTTPConfig(vllm_server.url, vocab_size=415))
    try:
        results = serve(engine, [Generate(prompt(20), 60, constraint=form) for form in (*FORMS[1:], *BAD)])
    finally:
        engine.close()
    for form, result in zip(FORMS[1:], results, strict=False):
        assert holds(form, tokenizer.decode(result.token_ids, skip_special_tokens=True))
    assert all(isinstance(result, Failed) for result in results[2:])


def test_a_masked_token_over_http_has_no_probability_only_under_a_constraint():
    row = {"token_id": 7, "logprob": -0.1, "top_logprobs": [{"token_id": 3, "logprob": -9999.0}]}
    reply = {"choices": [{"token_ids": [7], "logprobs": {"content": [row]}, "finish_reason": "stop"}]}
    asked = Generate((1,), 1, watch_ids=(3,), constraint=FORMS[1])
    assert TOKENS.parse(json.dumps(reply).encode(), asked).watched[0, 0] == -np.inf
    with pytest.raises(BadReplyError, match="no log-probability"):
        TOKENS.parse(json.dumps(reply).encode(), Generate((1,), 1, watch_ids=(3,)))
