"""Endpoints: constraints as each server takes them, labels from its alternatives, and no exception for what it says."""

import asyncio
import json
import math

import pytest
from chat_server import ChatServer, said

from selfrag.errors import EngineError, UserError
from selfrag.intrinsics import Answerability, HallucinationDetection, QueryRewrite
from selfrag.intrinsics.contract import (
    ChatPrompt,
    Code,
    Completion,
    Constraint,
    Failed,
    Message,
    Piece,
    Request,
    Slot,
    State,
    TextPrompt,
)
from selfrag.intrinsics.execution.endpoint import (
    ConstraintMode,
    EndpointConfig,
    EndpointExecutor,
    obeys,
    parse,
)

STATE = State((Message("user", "Who wrote Faust?"),))
SITE = STATE.in_message("query", 0)
CHAT = ChatPrompt((Message("user", "Can it be answered?"),))
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}
SLOT = Slot(("answerable", "unanswerable"), SITE)
LABELS = [("un", {"un": math.log(0.3), "answer": math.log(0.6), "x": math.log(0.1)}), ("answerable", {"answerable": 0})]


def executor(server, **options):
    return EndpointExecutor(EndpointConfig(server.url, "base", backoff=0.01, **options))


def constraint_of(sent):
    return next((key for key in ("structured_outputs", "response_format") if key in sent), None)


def test_the_strictest_way_that_a_server_obeys_is_found_once():
    def hosted(sent):
        if "structured_outputs" in sent:
            return 400, {"error": {"message": "unknown field structured_outputs"}}
        return said('{"q": "Who wrote it?"}')

    with ChatServer(hosted) as server:
        runs = executor(server)
        request = Request(STATE, CHAT, 50, constraint=Constraint.json(SCHEMA))
        [first] = runs.run([request])
        [second, third] = runs.run([request, request])
    assert [constraint_of(sent) for sent in server.bodies] == ["structured_outputs", *["response_format"] * 3]
    assert runs.constraint_mode is ConstraintMode.SCHEMA
    assert first == second == third
    assert json.loads(first.text) == {"q": "Who wrote it?"}
    assert (first.prompt_tokens, first.generated_tokens, first.finish) == (7, 3, "stop")


def test_a_server_that_is_deaf_to_constraints_is_noticed():
    """Status 200 and free text: what old fields get from a current vLLM, and new ones from old servers."""
    with ChatServer(lambda sent: said("Sure! Here is the question: Who wrote it?")) as server:
        runs = executor(server)
        [result] = runs.run([Request(STATE, CHAT, 50, constraint=Constraint.json(SCHEMA))])
    assert runs.constraint_mode is ConstraintMode.NONE
    assert isinstance(result, Completion)
    assert len(server.bodies) == 3


def test_a_server_that_is_broken_is_not_taken_for_deaf():
    with ChatServer(lambda sent: (500, {"error": "out of memory"})) as server:
        runs = executor(server)
        [result] = runs.run([Request(STATE, CHAT, 50, constraint=Constraint.json(SCHEMA))])
    assert isinstance(result, Failed)
    assert "out of memory" in result.reason
    assert runs.constraint_mode is ConstraintMode.AUTO
    assert len(server.bodies) == 1


@pytest.mark.parametrize("schema", [False, True])
def test_scores_are_read_off_the_alternatives_also_in_the_one_field_of_a_schema(schema):
    mode = ConstraintMode.SCHEMA if schema else ConstraintMode.AUTO
    tokens = [('{"label": "', {'{"label": "': 0.0}), *LABELS, ('"}', {'"}': 0.0})] if schema else LABELS
    text = '{"label": "unanswerable"}' if schema else "unanswerable"
    with ChatServer(lambda sent: said(text, tokens)) as server:
        [result] = executor(server, constraint_mode=mode).run([Request(STATE, CHAT, slots=(SLOT,))])
    (sent,) = server.bodies
    if schema:
        labels = sent["response_format"]["json_schema"]["schema"]["properties"]["label"]["enum"]
    else:
        labels = sent["structured_outputs"]["choice"]
    assert labels == ["answerable", "unanswerable"]
    assert sent["top_logprobs"] == 20
    assert [math.exp(value) for value in result.scores[0]] == pytest.approx([0.6, 0.3])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answerable.", (0.0, -math.inf)),
        ("unanswerable", (-math.inf, 0.0)),
        (" answerable", (0.0, -math.inf)),
        ("answerability is high", None),
        ("I think so", None),
        ("", None),
    ],
)
def test_without_log_probabilities_a_label_is_certain_and_anything_else_undefined(text, expected):
    with ChatServer(lambda sent: said(text)) as server:
        [result] = executor(server, constraint_mode=ConstraintMode.NONE).run([Request(STATE, CHAT, slots=(SLOT,))])
    assert result.scores == (expected,)


def test_a_beginning_is_continued_where_the_server_can_and_asked_for_where_not():
    slot = Slot((" faithful", " NA"), SITE, "Sentence 1: Yes.\nVerdict:")
    with ChatServer(lambda sent: said(" faithful")) as server:
        executor(server, constraint_mode=ConstraintMode.STRUCTURED).run([Request(STATE, CHAT, slots=(slot,))])
        executor(server, constraint_mode=ConstraintMode.NONE).run([Request(STATE, CHAT, slots=(slot,))])
    continued, asked = server.bodies
    assert continued["messages"][-1] == {"role": "assistant", "content": slot.prefill}
    assert (continued["continue_final_message"], continued["add_generation_prompt"]) == (True, False)
    assert len(asked["messages"]) == 1
    assert asked["messages"][0]["content"].endswith(slot.prefill)


def test_rendered_prompts_go_to_the_text_route():
    reply = {
        "text": "7",
        "finish_reason": "stop",
        "logprobs": {"tokens": ["7"], "token_logprobs": [-0.1], "top_logprobs": [{"7": -0.1, "8": -2.4}]},
    }
    prompt = TextPrompt((Piece("<|start_of_role|>user<|end_of_role|>", control=True), Piece("Hi <|end_of_text|>")))
    with ChatServer(lambda sent: (200, {"choices": [reply]})) as server:
        request = Request(STATE, prompt, 1, constraint=Constraint.choice(tuple("0123456789")), top_logprobs=5)
        [result] = executor(server).run([request])
    assert server.paths == ["/v1/completions"]
    assert server.bodies[0]["prompt"] == "<|start_of_role|>user<|end_of_role|>Hi < | end_of_text|>"
    assert result.tokens[0].top == (("7", -0.1), ("8", -2.4))


def test_a_new_name_for_the_limit_is_learned():
    def strict(sent):
        if "max_tokens" in sent:
            return 400, {"error": {"message": "'max_tokens' is not supported; use 'max_completion_tokens' instead."}}
        return said("x")

    with ChatServer(strict) as server:
        runs = executor(server)
        results = [runs.run([Request(STATE, CHAT, 5)])[0] for _ in range(2)]
    assert [result.text for result in results] == ["x", "x"]
    assert ["max_tokens" in sent for sent in server.bodies] == [True, False, False]


@pytest.mark.parametrize(
    "content", [b"<html>", b"{}", b'{"choices": []}', b'{"choices": [{"message": {}}]}', b"[" * 9999]
)
def test_what_is_no_reply_fails_with_a_reason(content):
    with ChatServer(lambda sent: (200, content)) as server:
        [result] = executor(server).run([Request(STATE, CHAT, 5)])
    assert isinstance(result, Failed)
    assert "\n" not in result.reason


@pytest.mark.parametrize("bad", [None, "x", [{"token": 7}], [{"token": "a", "logprob": 2.0}], [{"token": "a"}]])
def test_log_probabilities_that_are_none_are_left_out(bad):
    reply = {"choices": [{"message": {"content": "a"}, "finish_reason": None, "logprobs": {"content": bad}}]}
    found = parse(json.dumps(reply).encode(), "/chat/completions")
    assert (found.text, found.tokens, found.finish) == ("a", None, None)


def test_nobody_there_is_an_engine_error():
    runs = EndpointExecutor(EndpointConfig("http://127.0.0.1:9", "m", retries=1, backoff=0.0))
    with pytest.raises(EngineError, match=r"no server at .* after 2 attempts"):
        runs.run([Request(STATE, CHAT, 5)])


def test_it_runs_inside_an_event_loop_too():
    async def notebook():
        with ChatServer(lambda sent: said("x")) as server:
            return executor(server).run([Request(STATE, CHAT, 5)])

    assert asyncio.run(notebook())[0].text == "x"


@pytest.mark.parametrize(
    ("options", "said_"),
    [({"url": "localhost"}, "web address"), ({"model": " "}, "empty"), ({"top_logprobs": 99}, "top_logprobs")],
)
def test_wrong_settings_are_refused(options, said_):
    with pytest.raises(UserError, match=said_):
        EndpointConfig(**{"url": "http://h", "model": "m", **options})


def test_obeying():
    assert obeys('{"q": "x"}', Constraint.json(SCHEMA))
    assert not obeys('{"q": 1}', Constraint.json(SCHEMA))
    assert not obeys("[" * 100_000, Constraint.json(SCHEMA))
    assert obeys("12", Constraint.regex("[0-9]+"))
    assert not obeys("12a", Constraint.regex("[0-9]+"))
    assert obeys("yes", Constraint.choice(("yes", "no")))


def test_prompted_intrinsics_on_a_hosted_model():
    """No adapter, no vLLM: the default dialect on any chat model."""

    def hosted(sent):
        if "structured_outputs" in sent:
            return 400, {"error": {"message": "Unknown parameter"}}
        asked = json.dumps(sent["messages"])
        if "standalone" in asked or "rewritten" in asked:
            return said('{"rewritten_question": "Who wrote the play Faust?"}')
        label = sent["response_format"]["json_schema"]["schema"]["properties"]["label"]["enum"][0]
        return said(json.dumps({"label": label}))

    passages = ["Goethe wrote the play Faust."]
    turns = [{"role": "user", "content": "Who wrote Faust?"}, {"role": "assistant", "content": "Goethe. He wrote it."}]
    with ChatServer(hosted) as server:
        runs = executor(server)
        answerable = Answerability(runs)("Who wrote Faust?", passages)
        faithful = HallucinationDetection(runs)(turns, passages)
        rewrite = QueryRewrite(runs)([*turns, {"role": "user", "content": "When?"}])
    assert answerable.answerable == 1.0
    assert [note.code for note in answerable.diagnostics] == [Code.NO_LOGPROBS]
    assert len(faithful.sentences) == 2
    assert rewrite.text == "Who wrote the play Faust?"
