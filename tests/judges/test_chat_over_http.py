"""Chat models behind OpenAI-compatible servers: answers with citations, whatever the server can and cannot do."""

import json
import math
import re

import pytest
from chat_server import ChatServer, said
from json_files import read_lines, table, write_lines
from refusals import refused
from strange_server import MARKUP, THOUGHT

from retrieval.passage import Passage
from selfrag import Decoding, SelfRAG, Weights
from selfrag.common.errors import DecodingError, EngineError
from selfrag.decoding.trace import Trace
from selfrag.experiments.self_interpretation.run import read_grid
from selfrag.loading import model_address
from selfrag.reflection.judgment import JudgmentSource
from selfrag.reflection.labels import Role

SEINE = Passage("seine", "The Seine flows through Paris.", "Seine")
TEA = Passage("tea", "Green tea is brewed at 80 degrees.", "Tea")
QUESTION = "Which river flows through Paris?"
TEXT = "The Seine flows through Paris. It is long."
LABELS = {
    "retrieve": "yes",
    "isrel": "yes",
    "issup": "fully",
    "isuse": "5",
    "later": "nothing",
}
ASKED = {
    "looked up": "retrieve",
    "help to answer": "isrel",
    "support everything": "issup",
    "How useful": "isuse",
    "What is needed": "later",
}


def word_of(task, labels):
    """Return what is replied to a task; None where a text is to be written."""
    return next((labels[name] for part, name in ASKED.items() if part in task), None)


def model(labels=LABELS, *, logprobs=False, continues=False):
    """A server whose model calls tea irrelevant, and knows a short answer."""

    def reply(sent):
        turns = sent["messages"]
        begun = turns[-1]["content"] if turns[-1]["role"] == "assistant" else ""
        if "Count from one" in turns[0]["content"]:
            return said(" five, six" if begun and continues else "One, two")
        asked = [turn["content"] for turn in turns if turn["role"] == "user"][-1]
        word = word_of(asked, labels)
        if word is None:
            rest = TEXT.removeprefix(begun.strip()) if continues else TEXT
            pieces = re.findall(r"\s?[\w]+|\.", rest)
            tokens = (
                [(piece, {piece: -0.25}) for piece in pieces]
                if sent.get("logprobs") and logprobs
                else None
            )
            return said(rest, tokens)
        if "Tea\n" in asked and word == "yes":
            word = "no"
        sure = (
            {word: math.log(0.9), "yes": math.log(0.05)}
            if word != "yes"
            else {word: math.log(0.9)}
        )
        return said(word, [(word, sure)] if logprobs else None)

    return reply


def loaded(server, **options):
    return SelfRAG.from_pretrained(
        f"any-model@{server.url}/v1", backoff=0.01, **options
    )


def test_a_server_without_log_probabilities_gives_whole_answers_with_citations_and_says_so():
    with ChatServer(model()) as server, loaded(server) as rag:
        probes = len(server.bodies)  # at load: no question waits for them
        answer = rag.generate(QUESTION, evidence=[TEA, SEINE])
        sent = len(server.bodies)
    assert probes == 3
    assert (answer.text, answer.citations) == (TEXT, (SEINE,))
    assert (answer.whole_answers, answer.exact) == (True, False)
    (segment,) = answer.segments
    judgments = segment.judgments.values()
    labels = ["Retrieval", "Relevant", "Fully supported", "5"]
    assert [judgment.label for judgment in judgments] == labels
    assert {judgment.source for judgment in judgments} == {JudgmentSource.HARD}
    assert {node.likelihood for node in answer.trace.nodes} == {0.0}
    assert not answer.rescore(weights=Weights(issup=3)).exact
    assert answer.usage.requests == sent - probes
    assert answer.usage.prompt_tokens == 7 * answer.usage.requests


def test_what_a_server_does_not_judge_is_undefined_and_the_answer_is_cited_all_the_same():
    silent = dict.fromkeys(LABELS, "I would rather not say.")
    with (
        ChatServer(model(silent | {"retrieve": "yes"})) as server,
        loaded(server) as rag,
    ):
        answer = rag.generate(QUESTION, evidence=[SEINE])
    (node,) = answer.trace.nodes
    assert (answer.text, answer.citations) == (TEXT, (SEINE,))
    assert set(node.judgments.values()) == {None}
    assert set(node.undefined) == {"prompt_isrel", "prompt_issup", "prompt_isuse"}
    assert all("no probabilities" in reason for reason in node.undefined.values())
    line = f"segment 1 is not judged: {node.undefined['prompt_isrel']}"
    assert (answer.note, answer.as_dict()["note"]) == (line, line)
    assert f"note: {line}" in str(answer)


def answer_of(message, finish="stop", **options):
    """The answer to a question whose text comes as a message of some shape, and what judges were shown."""
    known = model()

    def reply(sent):
        asked = sent["messages"][-1]["content"]
        if word_of(asked, LABELS) is not None:
            return known(sent)
        choice = {"message": message, "finish_reason": finish}
        return 200, {"choices": [choice]}

    settings = {"continuation": "none", "constraint_mode": "none"}
    with ChatServer(reply) as server, loaded(server, **settings) as rag:
        answer = rag.generate(QUESTION, evidence=[SEINE], mode="always", **options)
        return answer, json.dumps(server.bodies)


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}
SHAPES = [{"content": f"{begin}{THOUGHT}{end}\n\n{TEXT}"} for begin, end in MARKUP] + [
    {"content": f"{THOUGHT}\n</think>\n\n{TEXT}"},
    {"content": TEXT, "reasoning_content": THOUGHT},
    {"content": TEXT, "reasoning": THOUGHT},
    {"content": [THINKING, {"type": "text", "text": TEXT}]},
]


@pytest.mark.parametrize("message", SHAPES)
def test_reasoning_stands_beside_the_answer_and_is_not_judged(message):
    answer, seen = answer_of(message)
    assert (answer.text, answer.citations, answer.note) == (TEXT, (SEINE,), None)
    assert answer.as_dict()["reasoning"] == answer.reasoning == THOUGHT
    assert THOUGHT not in seen


WITHOUT_TEXT = r"""
{"content": null, "reasoning": "THOUGHT"} | length | reasoning used up the
{"content": "<think>THOUGHT"} | stop | reasoning and no answer
{"content": null, "refusal": "I\nmust not."} | stop | the model refused: I must not.
{"content": null, "tool_calls": [{"id": "1"}]} | tool_calls | called a tool
{"content": null} | content_filter | the model refused: the server's content filter
{"content": ""} | stop | the model wrote nothing
{"content": null} | null | the model wrote nothing
"""


@pytest.mark.parametrize("message, finish, note", table(WITHOUT_TEXT))
def test_a_reply_without_text_is_an_abstention_that_says_why(message, finish, note):
    given = None if finish == "null" else finish
    answer, _ = answer_of(json.loads(message), given)
    assert (answer.text, answer.segments) == (Decoding.abstention, ())
    refuses = note.startswith("the model refused")
    reason = "the model refused" if refuses else "no text"
    assert (answer.abstained, answer.reason) == (True, reason)
    assert note in answer.note
    assert answer.finish == ("length" if finish == "length" else "stop")
    read = Trace.from_json(answer.trace.to_json())
    assert (read.reason, read.note) == (answer.reason, answer.note)


@pytest.mark.parametrize(
    "finish, expected", [(None, "stop"), ("eos_token", "stop"), ("done", "stop")]
)
def test_an_answer_is_whole_whatever_its_server_calls_that(finish, expected):
    answer, _ = answer_of({"content": TEXT}, finish)
    assert (answer.text, answer.finish) == (TEXT, expected)


def test_a_text_that_a_content_filter_has_cut_says_so():
    answer, _ = answer_of({"content": TEXT}, "content_filter")
    assert (answer.text, answer.finish) == (TEXT, "length")
    assert answer.note == "the server's content filter held back the reply or its end"


def test_a_server_that_goes_on_writes_segments_with_probabilities():
    with (
        ChatServer(model(logprobs=True, continues=True)) as server,
        loaded(server) as rag,
    ):
        answer = rag.generate(QUESTION, evidence=[SEINE, TEA], max_segments=3)
        light = rag.generate(QUESTION, evidence=[SEINE, TEA], decoding=Decoding.light())
    assert [segment.text for segment in answer.segments] == [
        "The Seine flows through Paris.",
        "It is long.",
    ]
    assert (answer.whole_answers, answer.exact) == (False, True)
    first = answer.segments[0]
    support = first.judgments[Role.SUPPORT]
    assert (support.source, support.coverage) == (
        JudgmentSource.JUDGE,
        pytest.approx(0.9),
    )
    assert answer.trace.nodes[first.node].likelihood == pytest.approx(math.exp(-0.25))
    assert answer.rescore(weights=Weights(issup=3)).exact
    assert light.text == answer.text
    assert light.usage.requests < answer.usage.requests


def test_multiple_choice_needs_probabilities_of_texts():
    with (
        ChatServer(model()) as server,
        loaded(server) as rag,
        refused("without options"),
    ):
        rag.choose(QUESTION, ["Seine", "Thames"], evidence=[SEINE])


def test_a_key_is_never_repeated(monkeypatch, caplog):
    monkeypatch.setenv("SOME_KEY", "sk-very-secret")
    known = model()

    def leaking(sent):
        if "river" in json.dumps(sent):
            return 400, {"error": {"message": "bad request of Bearer sk-very-secret"}}
        return known(sent)

    with ChatServer(leaking) as server, loaded(server, api_key_env="SOME_KEY") as rag:
        with pytest.raises(
            DecodingError, match=r"bad request of Bearer \*\*\*"
        ) as raised:
            rag.generate(QUESTION, evidence=[SEINE])
        assert "sk-very-secret" not in f"{raised.value!r} {rag!r} {caplog.text}"


REFUSED = """
{"engine": "vllm"} | leave the engine out
{"max_model_len": 9} | no option 'max_model_len'
{"continuation": "maybe"} | continuation='maybe': choose one of auto, vllm
{"judges": ["token_issup"]} | no reflection tokens; ask for prompt_issup
"""


@pytest.mark.parametrize("options, message", table(REFUSED))
def test_what_a_model_at_an_address_cannot_have(options, message):
    with ChatServer(model()) as server, refused(message):
        SelfRAG.from_pretrained(f"any-model@{server.url}", **json.loads(options))


@pytest.mark.parametrize(
    "name, address",
    [
        ("m@http://h/v1", ("m", "http://h/v1")),
        ("m@sha256:0@http://h", ("m@sha256:0", "http://h")),
        ("owner/m", None),
        ("m@h", None),
    ],
)
def test_a_name_with_an_address(name, address):
    assert model_address(name) == address


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with refused("more than an address") as raised:
        SelfRAG.from_pretrained("m@https://user:hush@h/v1")
    assert "hush" not in str(raised.value)


def test_a_server_that_is_not_there():
    with ChatServer(model()) as server:
        address = server.url
    with pytest.raises(EngineError, match="no server at"):
        SelfRAG.from_pretrained(f"any-model@{address}", retries=0).generate(
            QUESTION, evidence=[SEINE]
        )


def test_a_judge_labels_the_cases_that_a_small_model_learns_from(tmp_path, command):
    row = {"id": "0", "group": "IsRel", "instruction": QUESTION}
    texts = [{"title": one.title, "text": one.text} for one in (SEINE, TEA)]
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out"
    write_lines(cases, [row | {"id": one["title"], "evidence": one} for one in texts])
    with ChatServer(model(logprobs=True)) as server:
        judge = f"--load-judge prompt_isrel:any-model@{server.url}"
        command(f"critic label {cases} {judge} -o {out}")
    labelled = read_lines(out / "labelled.jsonl")
    assert [row["label"] for row in labelled] == ["Relevant", "Irrelevant"]


def test_commands_answer_with_a_server(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    row = {"id": "1", "task": "short", "instruction": QUESTION, "answers": ["Seine"]}
    row["passages"] = [{"id": "seine", "title": "Seine", "text": SEINE.text}]
    write_lines(tmp_path / "items.jsonl", [row])
    several = [row | {"id": str(n), "answers": [["Seine"]]} for n in range(3)]
    write_lines(tmp_path / "grid.jsonl", several)
    with ChatServer(model()) as server:
        name = f"--model any-model@{server.url}/v1"
        said, _ = command(f"selfrag ask {name} --set mode=never", QUESTION)
        ran, _ = command(
            f"selfrag eval run items.jsonl {name} --system selfrag -o runs"
        )
        line = "selfrag interpret run grid.jsonl -o grid --model any-model --cutoff 1"
        line += " --order ranked --examples 0 --prompt direct --endpoint"
        command(line, server.url)
    assert TEXT in said
    assert "100" in ran
    grid = read_grid(tmp_path / "grid")
    (record,) = grid.records(grid.cells[0])
    assert (record["text"], record["error"]) == (TEXT, None)
