"""Constraints: one meaning in every engine; what cannot be compiled fails its own request and nothing else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pump import FORMS, LABELS, SCHEMA

from selfrag.decoding.requests import Constraint, Generate
from selfrag.engines.base import Limits, refusal
from selfrag.engines.http import TOKENS, BadReplyError


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


def test_a_masked_token_over_http_has_no_probability_only_under_a_constraint():
    row = {"token_id": 7, "logprob": -0.1, "top_logprobs": [{"token_id": 3, "logprob": -9999.0}]}
    reply = {"choices": [{"token_ids": [7], "logprobs": {"content": [row]}, "finish_reason": "stop"}]}
    asked = Generate((1,), 1, watch_ids=(3,), constraint=FORMS[1])
    assert TOKENS.parse(json.dumps(reply).encode(), asked).watched[0, 0] == -np.inf
    with pytest.raises(BadReplyError, match="no log-probability"):
        TOKENS.parse(json.dumps(reply).encode(), Generate((1,), 1, watch_ids=(3,)))
