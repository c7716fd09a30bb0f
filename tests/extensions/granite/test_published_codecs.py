"""Codecs of the published dialects: what is taught comes back, and neither caller nor model breaks them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_files import read_json
from published_codecs import ALL, published
from refusals import refused
from wire_help import (
    GARBAGE,
    LABELLED,
    SENTENCES,
    STATE,
    WRITTEN,
    check_reading,
    check_taught,
    digest,
    find,
    said,
    spelled,
    state,
)

from selfrag.extensions.granite.chat import read_spec
from selfrag.extensions.granite.completion import SystemTurn
from selfrag.extensions.granite.registry import codec, codec_of_file, codec_of_spec
from selfrag.judges.wire import Completion, Gold
from selfrag.reflection.inputs import JudgeInput, Message

FILE = Path(__file__).with_name("recorded_codecs.json")
"""Made by running this file; published adapters know these prompts only."""


def test_all_codecs_are_recorded():
    assert list(ALL) == list(read_json(FILE))


@pytest.mark.parametrize("name", ALL)
def test_what_a_codec_writes_and_reads_is_as_recorded(name):
    assert digest(ALL[name]) == read_json(FILE)[name], json.dumps(
        list(said(ALL[name])), indent=1
    )[:20_000]


@pytest.mark.parametrize(
    "name", [n for n in ALL if n.split()[1] in (*LABELLED, *SENTENCES, *WRITTEN)]
)
def test_what_is_taught_comes_back(name):
    check_taught(ALL[name])


@pytest.mark.parametrize(
    "name, gold, said",
    [
        ("mellea answerability published", Gold(labels=("maybe",)), "unknown"),
        (
            "granite-common answer_relevance_classifier exact",
            Gold(labels=("relevant",)),
            "explains itself first",
        ),
        (
            "mellea hallucination_detection exact",
            Gold(labels=("faithful", "NA")),
            "2 gold labels for 3 sentences",
        ),
        (
            "mellea citation_generation exact",
            Gold(sources=((4,), (), ())),
            "outside of 4 sources",
        ),
        ("mellea query_rewrite exact", Gold(), "no text"),
    ],
)
def test_gold_that_does_not_fit_is_refused(name, gold, said):
    with refused(said):
        ALL[name].teach(ALL[name].encode(STATE), gold)


BASIC = "<|start_of_role|>user<|end_of_role|>q<|end_of_text|>\n<|start_of_role|>certainty<|end_of_role|>"


@pytest.mark.parametrize("dialect", ["granite-3.2", "granite-3.3"])
def test_system_turn(dialect):
    made = published(dialect, "uncertainty")
    head = "<|start_of_role|>system<|end_of_role|>"

    def text(judge_input, **changes):
        return replace(made, **changes).encode(judge_input).prompt.text

    assert text(state("q"), system=SystemTurn.NONE) == BASIC
    assert (
        text(state("q"), system=SystemTurn.EMPTY) == f"{head}<|end_of_text|>\n{BASIC}"
    )
    assert "Today's Date: May 2, 2026.\n" in text(state("q"), date="May 2, 2026")
    with_system = JudgeInput((Message("system", "Be brief."), Message("user", "q")))
    assert text(with_system) == f"{head}Be brief.<|end_of_text|>\n{BASIC}"


def of_fields(**fields):
    """A codec by the content of its `io.yaml`."""
    return codec_of_spec(read_spec("any", fields), exact=False, find=find)


def test_documents_as_turns():
    for form, shown in (
        (
            "string",
            [
                "You have access to the following documents:\n\n[Document 0]\na\n\n[Document 1]\nb"
            ],
        ),
        ("json", ['[{"text": "a", "doc_id": "0"}, {"text": "b", "doc_id": "1"}]']),
        ("roles", ["a", "b"]),
    ):
        wire = of_fields(docs_as_message=form).wire(state("q", documents=("a", "b")))
        assert [turn["content"] for turn in wire["messages"]] == [*shown, "q"]
        assert wire["messages"][0]["role"] == (
            "document 0" if form == "roles" else "user"
        )
        assert "extra_body" not in wire
        assert len(of_fields(docs_as_message=form).wire(state("q"))["messages"]) == 1


def test_the_contract_wins_and_unknown_fields_stay():
    rules = [
        {"type": "likelihood", "categories_to_values": {"yes": 1.0}, "input_path": []}
    ]
    parameters = {
        "temperature": 0.0,
        "max_completion_tokens": 9,
        "extra_body": {"top_k": 1},
    }
    made = of_fields(parameters=parameters, model="adapter", transformations=rules)
    judge_input = replace(
        state("q"),
        extra={
            "temperature": 1.0,
            "seed": 3,
            "model": "base",
            "extra_body": {"priority": 1},
        },
    )
    wire = made.wire(judge_input)
    assert wire.pop("messages") == [{"content": "q", "role": "user"}]
    assert wire == parameters | {
        **{"seed": 3, "model": "adapter", "extra_body": {"priority": 1, "top_k": 1}},
        **{"logprobs": True, "top_logprobs": 10},
    }
    request = made.encode(judge_input)
    assert (request.temperature, request.max_tokens) == (0.0, 9)
    assert dict(request.prompt.extra) == {"seed": 3, "priority": 1, "top_k": 1}


def test_names_that_are_none():
    with refused(r"unknown dialect 'granite'; known: granite-3\.2"):
        codec("granite", "answerability")
    with refused(r"granite-3\.2 .*'guardian'; .*generation"):
        codec("granite-3.2", "guardian")
    spec = read_spec(
        "any", {"response_format": {"type": "string", "enum": ["yes", "no"]}}
    )
    with refused("has no label 'answerable'"):
        codec_of_spec(spec, "answerability", find=find)


@pytest.mark.parametrize("limit", ["6", 0, 2.5, True, [6]])
def test_a_limit_that_is_no_number_of_tokens_is_one_line(limit):
    with refused(r"max_completion_tokens="):
        of_fields().encode(replace(state("q"), extra={"max_completion_tokens": limit}))


BAD = {
    "'foo' was unexpected": {"foo": 1},
    "transformations.0.type: 'magic' is not one of": {
        "transformations": [{"type": "magic"}]
    },
    "docs_as_message: 'xml' is not one of": {"docs_as_message": "xml"},
    "response_format or instruction cannot be read": {"response_format": "{"},
    "response_format is no JSON schema": {"response_format": "[]"},
    "sentence_boundaries: 'here' is not one of": {"sentence_boundaries": {"here": "r"}},
    "sentence_boundaries.documents: '1' does not match": {
        "sentence_boundaries": {"documents": "1"}
    },
    r"the field {a.b}": {"instruction": "{a.b}"},
    "or instruction cannot be read": {"instruction": "{"},
    "transformations: 3 is not of type": {"transformations": 3},
    "parameters.extra_body: 3 is not of type": {"parameters": {"extra_body": 3}},
    "holds a list": [1],
    "cannot be read as YAML": "a: [",
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_configuration_is_one_line(message, tmp_path):
    content = BAD[message]
    # JSON is YAML
    (tmp_path / "io.yaml").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    with refused(re.escape(message)):
        codec_of_file(tmp_path / "io.yaml")


@pytest.mark.parametrize("name", [name for name in ALL if not name.endswith("exact")])
@settings(max_examples=10)  # of each of a hundred codecs
@given(
    text=GARBAGE,
    with_tokens=st.booleans(),
    finish=st.sampled_from([None, "stop", "length"]),
)
def test_nothing_that_a_model_writes_raises(name, text, with_tokens, finish):
    check_reading(ALL[name], text, finish, spelled(text, with_tokens), ())


@pytest.mark.parametrize(
    "dialect, intrinsic, raw, label",
    [
        ("granite-3.2", "answerability", " answerable\n", "answerable"),
        (
            "granite-3.2",
            "answerability",
            "unanswerable\n\nThe documents",
            "unanswerable",
        ),
        ("granite-3.2", "answerability", "answerableanswerable", "answerable"),
        ("granite-3.2", "answerability", "Unanswerable", "unanswerable"),
        ("granite-3.2", "answerability", "I think answerable", None),
        ("granite-3.2", "answerability", "answer", None),
        ("granite-3.3", "uncertainty", "7\n8", "75%"),
        ("granite-3.3", "uncertainty", "70%", None),
    ],
)
def test_a_word_may_be_followed_by_more(dialect, intrinsic, raw, label):
    made = published(dialect, intrinsic)
    reflection = made.decode(
        made.encode(state("q", documents=("d.",))), Completion(raw)
    )
    assert [judgment.label for judgment in reflection.judgments] == (
        [] if label is None else [label]
    )
    assert bool(reflection.diagnostics) == (raw.strip() != label)


if __name__ == "__main__":
    FILE.write_text(
        json.dumps({name: digest(codec) for name, codec in ALL.items()}, indent=1)
        + "\n"
    )
