"""Wire format of the HTTP engine: what is sent, and that no reply can turn into a number the server did not send."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.decoding.requests import Finish, Generate, Generated
from selfrag.engines.http import TOKENS, BadReplyError

REQUEST = Generate((5, 6, 7), 3, stop_ids=(9,), watch_ids=(0, 2, 11))


def position(sampled, values):
    """A position as the server writes it: the sampled token first, the list cut at `logprobs` entries."""
    entries = {sampled: values[sampled], **values}
    top = [{"token_id": token, "logprob": value, "rank": 1} for token, value in entries.items()]
    return {"token_id": sampled, "logprob": values[sampled], "rank": 1, "top_logprobs": top}


def reply(**choice):
    rows = [position(8, {8: -0.1, 0: -1.0, 2: -2.0, 11: -3.0}), position(11, {11: -0.3, 0: -1.5, 2: -2.5})]
    return {
        "choices": [
            {
                "index": 0,
                "token_ids": [8, 11],
                "finish_reason": "length",
                "stop_reason": None,
                "logprobs": {"content": rows},
                **choice,
            }
        ],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    }


def read(value, request=REQUEST) -> Generated:
    return TOKENS.parse(json.dumps(value).encode(), request)


def test_body_asks_for_one_id_more_than_is_watched():
    """The server cuts each position at `logprobs` entries with the sampled token first: the spare id is cut."""
    sent = TOKENS.body(REQUEST, "m", "r1", 100)
    sampling = sent["sampling_params"]
    assert sampling["logprob_token_ids"] == [0, 2, 11, 1]
    assert sampling["logprobs"] == 4
    assert sampling["stop_token_ids"] == [9]
    assert sampling["temperature"] == 0.0
    assert "allowed_token_ids" not in sampling
    assert sent["token_ids"] == [5, 6, 7]
    assert (sent["model"], sent["request_id"], sent["stream"]) == ("m", "r1", False)


def test_columns_are_the_watched_ids_whatever_their_order_on_the_wire():
    shuffled = reply()
    for row in shuffled["choices"][0]["logprobs"]["content"]:
        row["top_logprobs"].reverse()
    for value in (reply(), shuffled):
        result = read(value)
        assert result.token_ids == (8, 11)
        assert result.token_logprobs == (-0.1, -0.3)
        np.testing.assert_allclose(result.watched, [[-1.0, -2.0, -3.0], [-1.5, -2.5, -0.3]])
        assert result.watched.dtype == np.float32
        assert result.cached_tokens == 2


@pytest.mark.parametrize(
    ("choice", "max_tokens", "finish"),
    [
        ({"finish_reason": "length"}, 2, Finish.BUDGET),
        ({"finish_reason": "length"}, 3, Finish.CONTEXT),
        ({"finish_reason": "stop", "stop_reason": 11}, 3, Finish.STOP),
        ({"finish_reason": "stop", "stop_reason": None}, 3, Finish.EOS),
        ({"finish_reason": "stop", "stop_reason": 77}, 3, Finish.EOS),  # a second EOS of the model
    ],
)
def test_finish_reasons(choice, max_tokens, finish):
    request = Generate((5, 6, 7), max_tokens, stop_ids=(11,), watch_ids=(0, 2, 11))
    value = reply(**choice)
    if choice.get("stop_reason") == 77:
        value["choices"][0]["token_ids"][1] = 12
        value["choices"][0]["logprobs"]["content"][1]["token_id"] = 12
    assert read(value, request).finish is finish


def test_a_missing_id_is_an_error_and_never_a_number():
    """Defects 8 and 9: a label that was not returned must not become -100, nor any other value."""
    value = reply()
    top = value["choices"][0]["logprobs"]["content"][1]["top_logprobs"]
    value["choices"][0]["logprobs"]["content"][1]["top_logprobs"] = [entry for entry in top if entry["token_id"] != 2]
    with pytest.raises(BadReplyError, match="token id 2 at position 1"):
        read(value)


@pytest.mark.parametrize("bad", [None, "-1", True, 0.5, -9999.0, float("-inf"), float("nan"), [], {}])
@pytest.mark.parametrize("where", ["sampled", "watched"])
def test_values_that_are_no_log_probabilities(bad, where):
    value = reply()
    row = value["choices"][0]["logprobs"]["content"][0]
    target = row if where == "sampled" else next(e for e in row["top_logprobs"] if e["token_id"] == 2)
    target["logprob"] = bad
    with pytest.raises(BadReplyError):
        read(value)


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": []},
        {"token_ids": None},
        {"token_ids": [8]},
        {"token_ids": [8, -1]},
        {"token_ids": [8, "11"]},
        {"token_ids": [8, True]},
        {"token_ids": [8, 12]},
        {"logprobs": None},
        {"logprobs": {"content": None}},
        {"logprobs": {"content": [None, None]}},
        {"finish_reason": "abort"},
        {"finish_reason": "error"},
        {"finish_reason": None},
    ],
)
def test_choices_that_lack_what_was_asked_for(choice):
    with pytest.raises(BadReplyError):
        read(reply(**choice))


@pytest.mark.parametrize("content", [b"", b"<html>", b"{", b"\xff", b"null", b"[]", b"{}", b'{"choices": []}'])
def test_replies_that_are_something_else(content):
    with pytest.raises(BadReplyError) as caught:
        TOKENS.parse(content, REQUEST)
    assert "\n" not in str(caught.value)


def test_more_tokens_than_asked_for():
    with pytest.raises(BadReplyError, match="max_tokens=1"):
        read(reply(), Generate((5,), 1, watch_ids=(0,)))


paths = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(st.data())
def test_a_reply_damaged_anywhere_is_read_right_or_refused(data):
    """Replace any one node of a good reply by anything: either an error, or every number is one that was sent."""
    value = reply()
    nodes = list(walk(value))
    container, key = data.draw(st.sampled_from(nodes))
    container[key] = data.draw(paths)
    sent = copy.deepcopy(value)
    try:
        result = read(value)
    except BadReplyError:
        return
    numbers = {number for number in leaves(sent) if isinstance(number, int | float)}
    assert {np.float32(n) for n in result.token_logprobs} <= {np.float32(n) for n in numbers}
    assert set(result.watched.ravel()) <= {np.float32(n) for n in numbers}
    assert set(result.token_ids) <= numbers
    assert result.watched.shape == (len(result.token_ids), 3)


def walk(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from walk(inner)


def leaves(value):
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    else:
        yield value
