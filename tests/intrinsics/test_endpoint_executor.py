"""Endpoints: constraints as each server takes them, labels from its alternatives, and no exception for what it says."""

import asyncio
import json
import math
import pickle
import time
from dataclasses import replace

import pytest
from chat_server import ChatServer, said
from json_files import table
from refusals import refused

from selfrag.common.errors import EngineError
from selfrag.decoding.segments import token_likelihood
from selfrag.engines.client import retry_after
from selfrag.judges.endpoint import EndpointConfig, EndpointExecutor, executor_at
from selfrag.judges.openai_wire import STOPS, ConstraintMode, Continuation, obeys, parse
from selfrag.judges.wire import (
    ChatPrompt,
    Completion,
    ModelRequest,
    PromptPiece,
    Slot,
    TextPrompt,
)
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.requests import Constraint

STATE = JudgeInput((Message("user", "Who wrote Faust?"),))
SITE = STATE.in_message("query", 0)
CHAT = ChatPrompt((Message("user", "Can it be answered?"),))
SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}},
    "required": ["q"],
    "additionalProperties": False,
}
BOUND = ModelRequest(STATE, CHAT, 50, constraint=Constraint.json(SCHEMA))
SCORED = ModelRequest(STATE, CHAT, slots=(Slot(("answerable", "unanswerable"), SITE),))
LABELS = [
    ("un", {"un": math.log(0.3), "answer": math.log(0.6), "x": math.log(0.1)}),
    ("answerable", {"answerable": 0}),
]
MODES = ("structured_outputs", "response_format")
YES_NO = ModelRequest(STATE, CHAT, slots=(Slot(("yes", "no"), SITE),))
FREE = {"constraint_mode": ConstraintMode.NONE}


def executor(server, **options):
    return EndpointExecutor(EndpointConfig(server.url, "base", backoff=0.01, **options))


def ask_server(reply, request, times=1, **options):
    """The results of a request that is sent so many times, the bodies that the server saw, and the executor."""
    with ChatServer(reply) as server:
        runs = executor(server, **options)
        results = [runs.run([request])[0] for _ in range(times)]
    return results, server.bodies, runs


def refusing(name, message, reply):
    """A server that answers 400 to bodies with a field, and to others with `reply(body)`."""
    return lambda sent: (
        (400, {"error": {"message": message}}) if name in sent else reply(sent)
    )


def test_the_strictest_way_that_a_server_obeys_is_found_once():
    hosted = refusing(
        "structured_outputs",
        "unknown field",
        lambda sent: said('{"q": "Who wrote it?"}'),
    )
    results, bodies, runs = ask_server(hosted, BOUND, times=2)
    sent = [[mode for mode in MODES if mode in body] for body in bodies]
    assert sent == [["structured_outputs"], ["response_format"], ["response_format"]]
    assert runs.constraint_mode is ConstraintMode.SCHEMA
    assert results[0] == results[1]
    assert json.loads(results[0].text) == {"q": "Who wrote it?"}
    assert (
        results[0].prompt_tokens,
        results[0].generated_tokens,
        results[0].finish,
    ) == (7, 3, "stop")


@pytest.mark.parametrize(
    "reply, mode, count",
    [
        # Status 200 and free text: what old fields get from a current vLLM, and new ones from old servers.
        (said("Sure! Here is the question: Who wrote it?"), ConstraintMode.NONE, 3),
        ((500, {"error": "out of memory"}), ConstraintMode.AUTO, 1),  # broken, not deaf
    ],
)
def test_a_server_that_is_deaf_to_constraints_is_noticed(reply, mode, count):
    [result], bodies, runs = ask_server(lambda sent: reply, BOUND)
    assert (runs.constraint_mode, len(bodies)) == (mode, count)
    assert (
        isinstance(result, Completion)
        if count > 1
        else "out of memory" in result.reason
    )


@pytest.mark.parametrize("schema", [False, True])
def test_scores_are_read_off_the_alternatives_also_in_the_one_field_of_a_schema(schema):
    mode, text, tokens = ConstraintMode.AUTO, "unanswerable", LABELS
    if schema:
        mode, text = ConstraintMode.SCHEMA, '{"label": "unanswerable"}'
        begin, end = '{"label": "', '"}'
        tokens = [(begin, {begin: 0.0}), *LABELS, (end, {end: 0.0})]
    reply = said(text, tokens)
    [result], [sent], _ = ask_server(lambda _: reply, SCORED, constraint_mode=mode)
    if schema:
        field = sent["response_format"]["json_schema"]["schema"]["properties"]
        labels = field["label"]["enum"]
    else:
        labels = sent["structured_outputs"]["choice"]
    assert labels == ["answerable", "unanswerable"]
    assert sent["top_logprobs"] == 20
    assert [math.exp(value) for value in result.scores[0]] == pytest.approx([0.6, 0.3])


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Answerable.", (0.0, -math.inf)),
        (" unanswerable", (-math.inf, 0.0)),
        ("answerability is high", None),
        ("", None),
    ],
)
def test_without_log_probabilities_a_label_is_certain_and_anything_else_undefined(
    text, expected
):
    [result], _, _ = ask_server(lambda sent: said(text), SCORED, **FREE)
    assert result.scores == (expected,)


def test_a_beginning_is_continued_where_the_server_can_and_asked_for_where_not():
    slot = Slot((" faithful", " NA"), SITE, "Sentence 1: Yes.\nVerdict:")
    request = ModelRequest(STATE, CHAT, slots=(slot,))
    continued, asked_for = (
        ask_server(lambda sent: said(" NA"), request, constraint_mode=mode)[1][0]
        for mode in (ConstraintMode.STRUCTURED, ConstraintMode.NONE)
    )
    assert continued["messages"][-1] == {"role": "assistant", "content": slot.prefill}
    assert continued["continue_final_message"]
    assert not continued["add_generation_prompt"]
    (turn,) = asked_for["messages"]
    assert turn["content"].endswith(slot.prefill)


COUNTING = " five, six,"
WHOLE = "One, two, three."


def counts(sent):
    """A server that goes on with a last turn of the assistant, or with a text that ends in one."""
    if "prompt" in sent:
        return 200, {"choices": [{"text": COUNTING, "finish_reason": "length"}]}
    return said(COUNTING if sent["messages"][-1]["role"] == "assistant" else WHOLE)


def starts_again(sent):
    return said(WHOLE)


def by_fields(sent):
    return said(COUNTING if "continue_final_message" in sent else WHOLE)


def without(reply):
    return refusing("continue_final_message", "unknown field", reply)


@pytest.mark.parametrize(
    "reply, routes, continuation, requests",
    [
        (by_fields, ("",), Continuation.FIELDS, 1),
        (without(counts), ("",), Continuation.LAST_TURN, 2),
        (starts_again, ("",), Continuation.NONE, 3),
        (without(starts_again), ("",), Continuation.NONE, 3),
        (counts, ("/v1/completions",), Continuation.COMPLETIONS, 3),
    ],
)
def test_how_a_server_goes_on_with_a_reply_is_found_once(
    reply, routes, continuation, requests
):
    goes_on = continuation is not Continuation.NONE
    request = ModelRequest(STATE, CHAT, 9, prefill="one, two, three, four,")
    with ChatServer(reply, routes=routes) as server:
        runs = executor(server)
        for _ in range(2):
            assert runs.continues is goes_on
            assert (runs.continuation, len(server.bodies)) == (continuation, requests)
        [result] = runs.run([request])
        assert result.text == (COUNTING if goes_on else WHOLE)
        assert len(server.bodies) == requests + 1
        asked_to = json.dumps(server.bodies[-1])
    assert ("write only what comes next" in asked_to) is not goes_on


@pytest.mark.parametrize(
    "reply, message",
    [
        (
            (404, {"error": {"message": "model 'base' not found"}}),
            "model 'base' not found",
        ),
        ((500, {"error": "out of memory"}), "out of memory"),
        ((401, {"error": "no"}), "the key in OPENAI_API_KEY is not set"),
    ],
)
def test_a_server_that_cannot_answer_is_no_server_that_cannot_go_on(
    reply, message, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with (
        ChatServer(lambda sent: reply) as server,
        pytest.raises(EngineError, match=message),
    ):
        _ = executor(server, retries=0).continues


def test_a_seed_goes_to_the_server():
    request = ModelRequest(STATE, CHAT, 5, temperature=1.0, seed=7)
    _, bodies, _ = ask_server(lambda sent: said("No."), request, 1)
    assert (bodies[-1]["seed"], bodies[-1]["temperature"]) == (7, 1.0)


@pytest.mark.parametrize("name", ["logprobs", "temperature"])
def test_a_server_that_refuses_a_field_it_can_do_without_is_asked_without_it(name):
    message = f"Unsupported parameter: '{name}' is not supported with this model."
    strict = refusing(name, message, lambda sent: said("No."))
    results, bodies, _ = ask_server(strict, YES_NO, 2, **FREE)
    assert [result.scores for result in results] == [((-math.inf, 0.0),)] * 2
    assert [name in sent for sent in bodies] == [True, False, False]


FEWER = """
5 | top_logprobs must be less than or equal to 5 | [20, 5, 5]
5 | Requested sample logprobs of 20, which is greater than max 5 | [20, 5, 5]
8 | `top_logprobs` must be in the range [0, 8] | [20, 8, 8]
5 | Invalid value for top_logprobs | [20, 10, 5, 5]
0 | logprobs are limited to none | [20, 10, 5, 2, 1, null, null]
0 | logprobs is not supported with gpt-5 | [20, null, null]
5 | bad request | [20, null, 20, null]
"""


@pytest.mark.parametrize("most, message, asked", table(FEWER))
def test_a_server_that_allows_fewer_alternatives_is_asked_for_fewer(
    most, message, asked
):
    most, asked = int(most), json.loads(asked)

    def strict(sent):
        if sent.get("top_logprobs", 0) > most:
            return 400, {"error": {"message": message}}
        tokens = [("yes", {"yes": -0.1, "no": -2.5})] if most else None
        return said("yes", tokens if "top_logprobs" in sent else None)

    results, bodies, _ = ask_server(strict, YES_NO, 2, **FREE)
    assert [sent.get("top_logprobs") for sent in bodies] == asked
    scores = (-0.1, -2.5) if asked[-1] else (0.0, -math.inf)
    for result in results:
        assert result.scores[0] == pytest.approx(scores)


def test_a_reply_whose_budget_went_to_reasoning_is_asked_for_again_with_more():
    def reasoning(sent):
        if sent["max_tokens"] < 1000:
            message = {"content": None, "reasoning_content": "Hmm."}
            return 200, {"choices": [{"message": message, "finish_reason": "length"}]}
        return said("<think>Hmm.</think>yes")

    results, bodies, _ = ask_server(reasoning, YES_NO, 2, **FREE)
    assert [result.scores for result in results] == [((0.0, -math.inf),)] * 2
    assert [sent["max_tokens"] > 1000 for sent in bodies] == [False, True, True]


def test_alternatives_tell_of_labels_although_none_was_written():
    the = {"The": math.log(0.5), "yes": math.log(0.2), "no": math.log(0.1)}
    reply = said("The text", [("The", the), (" text", {" text": 0.0})])
    [result], _, _ = ask_server(lambda sent: reply, YES_NO, **FREE)
    assert [math.exp(value) for value in result.scores[0]] == pytest.approx([0.2, 0.1])


def test_a_vllm_without_its_tokenizer_here_ends_texts_after_a_sentence():
    card = {"id": "base", "owned_by": "vllm", "root": "/secret", "max_model_len": 512}
    choice = {"message": {"content": "One."}, "finish_reason": "stop"}
    reply = 200, {"choices": [choice | {"stop_reason": "."}]}
    request = ModelRequest(STATE, CHAT, 9, sentence=True, prefill="So ")
    with ChatServer(lambda sent: reply, models=(card,)) as server:
        runs = executor_at("base", server.url)
        [result] = runs.run([request])
        with refused("no usable tokenizer"):
            executor_at("base", server.url, tokenizer="nowhere/at-all")
    [sent] = server.bodies  # nothing to find out
    assert (result.finish, runs.continues) == ("sentence", True)
    assert sent["include_stop_str_in_output"]
    assert (sent["stop"], sent["continue_final_message"]) == (list(STOPS), True)


def test_rendered_prompts_go_to_the_text_route():
    logprobs = {"tokens": ["7"], "token_logprobs": [-0.1]}
    logprobs["top_logprobs"] = [{"7": -0.1, "8": -2.4}]
    reply = {"text": "7", "finish_reason": "stop", "logprobs": logprobs}
    role = "<|start_of_role|>user<|end_of_role|>"
    pieces = PromptPiece(role, control=True), PromptPiece("Hi <|end_of_text|>")
    digits = Constraint.choice(tuple("0123456789"))
    request = ModelRequest(
        STATE, TextPrompt(pieces), 1, constraint=digits, top_logprobs=5
    )
    with ChatServer(lambda sent: (200, {"choices": [reply]})) as server:
        [result] = executor(server).run([request])
    assert server.paths == ["/v1/completions"]
    assert server.bodies[0]["prompt"] == f"{role}Hi < | end_of_text|>"
    assert result.tokens[0].top == (("7", -0.1), ("8", -2.4))


def test_a_new_name_for_the_limit_is_learned():
    message = "'max_tokens' is not supported; use 'max_completion_tokens' instead."
    strict = refusing("max_tokens", message, lambda sent: said("x"))
    results, bodies, _ = ask_server(strict, ModelRequest(STATE, CHAT, 5), times=2)
    assert [result.text for result in results] == ["x", "x"]
    assert ["max_tokens" in sent for sent in bodies] == [True, False, False]


@pytest.mark.parametrize(
    "bad",
    [
        *(None, "x", [{"token": 7}], [{"token": "a"}]),
        *([{"token": "a", "logprob": bad}] for bad in (2.0, 10**400, math.nan, "-1")),
    ],
)
def test_log_probabilities_that_are_none_are_left_out(bad):
    choice = {"message": {"content": "a"}, "logprobs": {"content": bad}}
    content = json.dumps({"choices": [choice | {"finish_reason": None}]}).encode()
    completion = parse(content, "/chat/completions")
    assert (completion.text, completion.tokens, completion.finish) == ("a", None, None)


@pytest.mark.parametrize("value", [-(10**400), -1e308, -math.inf, -9999])
def test_a_log_probability_below_all_others_is_the_least(value):
    row = {"token": "a", "logprob": value, "top_logprobs": []}
    choice = {"message": {"content": "aaa"}, "logprobs": {"content": [row] * 3}}
    content = json.dumps({"choices": [choice]}).encode()
    tokens = parse(content, "/chat/completions").tokens
    logprobs = tuple(token.logprob for token in tokens)
    assert logprobs == (-9999.0,) * 3
    assert token_likelihood(logprobs, 3, "segment") == 0.0


@pytest.mark.parametrize(
    "value, seconds",
    [
        ("7", 7.0),
        ("1e400", 0.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 0.0),
        ("Mon, 99 Jan 2030 00:00:00 GMT", 0.0),
        ("nan", 0.0),
        ("soon", 0.0),
    ],
)
def test_a_time_to_wait_that_is_none_is_not_waited(value, seconds):
    assert retry_after({"Retry-After": value}) == seconds


def test_an_error_in_a_reply_of_status_200_is_repeated():
    error = {"error": {"message": "out\nof \x1b memory", "code": 500}}
    [result], _, _ = ask_server(lambda sent: (200, error), ModelRequest(STATE, CHAT, 5))
    assert result.reason.endswith("the reply is an error: out of \ufffd memory")


def test_batches_share_one_pace_and_one_connection_until_it_is_closed():
    request = ModelRequest(STATE, CHAT, 5)
    with ChatServer(lambda sent: said("x")) as server:
        runs = executor(server, requests_per_minute=1200)
        begin = time.monotonic()
        results = [runs.run([request])[0].text for _ in range(5)]
        seconds = time.monotonic() - begin
        assert (results, server.accepted) == (["x"] * 5, 1)
        assert seconds >= 4 * 0.05
        copy = pickle.loads(pickle.dumps(runs))
        runs.close()
        for again in (runs, copy):
            assert again.run([request])[0].text == "x"
            again.close()
        assert server.accepted == 3


def test_it_runs_inside_an_event_loop_too():
    async def notebook():
        return ask_server(lambda sent: said("x"), ModelRequest(STATE, CHAT, 5))

    assert asyncio.run(notebook())[0][0].text == "x"


def test_a_model_without_a_name_is_refused():
    with refused("empty"):
        EndpointConfig("http://h", " ")
    with refused("top_logprobs=21"):
        EndpointConfig("http://h", "base", top_logprobs=21)


def test_a_label_that_fails_leaves_the_text():
    request = replace(YES_NO, max_tokens=5)

    def reply(sent):
        return (500, {"error": "no"}) if "structured_outputs" in sent else said("So.")

    [result], _, _ = ask_server(reply, request, retries=0)
    assert (result.text, result.scores) == ("So.", (None,))


def test_obeying():
    assert obeys("12", Constraint.regex("[0-9]+"))
    assert not obeys("12a", Constraint.regex("[0-9]+"))
    assert obeys(" yes", Constraint.choice(("yes", "no")))
    assert not obeys("[" * 100_000, Constraint.json(SCHEMA))
