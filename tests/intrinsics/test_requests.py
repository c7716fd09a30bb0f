"""Requests of the dialects: framing, documents, instruction, parameters, slots, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from wire_help import find, published, state

from selfrag.errors import UserError
from selfrag.intrinsics.contract import ChatPrompt, Message, State, TextPrompt
from selfrag.intrinsics.dialects.chat import read_spec
from selfrag.intrinsics.dialects.completion import System
from selfrag.intrinsics.dialects.registry import codec, codec_of_file, codec_of_spec

BASIC = "<|start_of_role|>user<|end_of_role|>q<|end_of_text|>\n<|start_of_role|>certainty<|end_of_role|>"


def text(codec, given: State) -> str:
    prompt = codec.encode(given).prompt
    assert isinstance(prompt, TextPrompt)
    return prompt.text


@pytest.mark.parametrize("dialect", ["granite-3.2", "granite-3.3"])
def test_system_turn(dialect: str):
    given = published(dialect, "uncertainty")
    head = "<|start_of_role|>system<|end_of_role|>"
    assert text(replace(given, system=System.NONE), state("q")) == BASIC
    assert text(replace(given, system=System.EMPTY), state("q")) == f"{head}<|end_of_text|>\n{BASIC}"
    assert "Today's Date: May 2, 2026.\n" in text(replace(given, date="May 2, 2026"), state("q"))
    own = State((Message("system", "Be brief."), Message("user", "q")))
    assert text(given, own) == f"{head}Be brief.<|end_of_text|>\n{BASIC}"


FORMS = {
    "string": [("user", "You have access to the following documents:\n\n[Document 0]\na\n\n[Document 1]\nb")],
    "json": [("user", '[{"text": "a", "doc_id": "0"}, {"text": "b", "doc_id": "1"}]')],
    "roles": [("document 0", "a"), ("document 1", "b")],
}


@pytest.mark.parametrize("form", FORMS)
def test_documents_as_turns(form: str):
    made = codec_of_spec(read_spec("any", {"docs_as_message": form}), exact=False, find=find)
    wire = made.wire(state("q", documents=("a", "b")))
    assert [(m["role"], m["content"]) for m in wire["messages"]] == [*FORMS[form], ("user", "q")]
    assert "extra_body" not in wire
    assert [m["role"] for m in made.wire(state("q"))["messages"]] == ["user"]


def test_the_contract_wins_and_unknown_fields_stay():
    parameters = {"temperature": 0.0, "max_completion_tokens": 9, "extra_body": {"top_k": 1}}
    spec = read_spec("any", {"parameters": parameters, "model": "adapter"})
    made = codec_of_spec(spec, exact=False, find=find)
    extra = {"temperature": 1.0, "seed": 3, "model": "base", "extra_body": {"priority": 1}}
    given = State((Message("user", "q"),), extra=extra)
    wire = made.wire(given)
    assert (wire["temperature"], wire["max_completion_tokens"], wire["seed"]) == (0.0, 9, 3)
    assert wire["model"] == "adapter"
    assert wire["extra_body"] == {"priority": 1, "top_k": 1}
    request = made.encode(given)
    assert (request.temperature, request.max_tokens) == (0.0, 9)
    assert isinstance(request.prompt, ChatPrompt)
    assert dict(request.prompt.extra) == {"seed": 3, "priority": 1, "top_k": 1}


def test_a_missing_argument_is_named():
    with pytest.raises(UserError, match="requirement_check needs the argument 'requirement'"):
        published("mellea", "requirement_check").encode(state("q", "a"))
    with pytest.raises(UserError, match="needs the argument 'answer_relevance_category'"):
        published("granite-3.3", "answer_relevance_rewriter").encode(state("q", "a"))


def test_names_that_are_none():
    with pytest.raises(UserError, match=r"unknown dialect 'granite'; known: granite-3\.2"):
        codec("granite", "answerability")
    with pytest.raises(UserError, match=r"granite-3\.2 has no 'guardian'; it has: generation"):
        codec("granite-3.2", "guardian")
    with pytest.raises(UserError, match="empty"):
        published("mellea", "answerability").encode(State(()))


@pytest.mark.parametrize("limit", ["many", "6", 0, -1, 2.5, True, [6]])
def test_a_limit_that_is_no_number_of_tokens_is_one_line(limit):
    made = codec_of_spec(read_spec("any", {}), exact=False, find=find)
    with pytest.raises(UserError, match=r"max_completion_tokens=.*: give a whole number of at least 1"):
        made.encode(State((Message("user", "q"),), extra={"max_completion_tokens": limit}))


def test_an_io_yaml(tmp_path: Path):
    folder = tmp_path / "answerability"
    folder.mkdir()
    (folder / "io.yaml").write_text(
        'model: ~\nresponse_format: |\n  {"type": "string", "enum": ["answerable", "unanswerable"]}\n'
        "transformations:\n  - type: likelihood\n    categories_to_values: {answerable: 1.0, unanswerable: 0.0}\n"
        "    input_path: []\n  - type: nest\n    input_path: []\n    field_name: p\n"
        "instruction: ~\nparameters: {max_completion_tokens: 6}\nsentence_boundaries: ~\n"
    )
    made = codec_of_file(folder / "io.yaml", "answerability", exact=False, find=find)
    wire = made.wire(state("q", documents=("d",)))
    assert wire["extra_body"]["structured_outputs"]["json"]["enum"] == ["answerable", "unanswerable"]
    assert (wire["logprobs"], wire["top_logprobs"], wire["max_completion_tokens"]) == (True, 10, 6)
    assert made.adapter == "answerability"


BAD = {
    "'foo' was unexpected": {"foo": 1},
    "transformations.0.type: 'magic' is not one of": {"transformations": [{"type": "magic"}]},
    "docs_as_message: 'xml' is not one of": {"docs_as_message": "xml"},
    "response_format or instruction cannot be read": {"response_format": "{"},
    "response_format is no JSON schema": {"response_format": "[]"},
    "parameters: 3 is not of type 'object'": {"parameters": 3},
    "sentence_boundaries: 'here' is not one of": {"sentence_boundaries": {"here": "r"}},
    "sentence_boundaries.documents: '1' does not match": {"sentence_boundaries": {"documents": "1"}},
    r"the field {a.b}": {"instruction": "{a.b}"},
    "or instruction cannot be read": {"instruction": "{"},
    "instruction: 3 is not of type": {"instruction": 3},
    "transformations: 3 is not of type": {"transformations": 3},
    "transformations.0.type: ['nest'] is not one of": {"transformations": [{"type": ["nest"]}]},
    "parameters.extra_body: 3 is not of type": {"parameters": {"extra_body": 3}},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_configuration_is_one_line(message: str):
    with pytest.raises(UserError) as error:
        read_spec("any", BAD[message])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bad_file_is_one_line(tmp_path: Path):
    for content in ("[1]", "a: [", "\x00"):
        (tmp_path / "io.yaml").write_text(content)
        with pytest.raises(UserError) as error:
            codec_of_file(tmp_path / "io.yaml")
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="cannot be read"):
        codec_of_file(tmp_path / "missing.yaml")


def test_schema_with_other_labels_is_refused():
    spec = read_spec("any", {"response_format": {"type": "string", "enum": ["yes", "no"]}})
    with pytest.raises(UserError, match="has no label 'answerable'"):
        codec_of_spec(spec, "answerability", find=find)
