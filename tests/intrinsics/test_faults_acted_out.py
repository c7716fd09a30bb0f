"""Faults of the public libraries: a recorded result is explained only if it is what the fault makes of the reply."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from conformance.compare import Deviation
from conformance.recorded import explained
from retrieval.passage import Passage
from selfrag.intrinsics.contract import Completion, Message, State, TokenLogprob
from selfrag.intrinsics.dialects.registry import Options, codec

STATE = State((Message("user", "q"), Message("assistant", "One. Two.")), (Passage("1", "Alpha. Beta."),))


def token(*pairs: tuple[str, float]) -> TokenLogprob:
    top = tuple((text, math.log(p)) for text, p in pairs)
    return TokenLogprob(*top[0], top)


def reasons(intrinsic: str, completion: Completion, theirs: Any) -> set[Deviation]:
    made = codec("granite-common", intrinsic, Options(exact=False, find=_halves))
    request = made.encode(STATE)
    return explained(made, request, completion, made.decode(request, completion), theirs)  # type: ignore[arg-type]


def _halves(text: str) -> list[tuple[int, int]]:
    cut = text.index(" ") if " " in text else len(text)
    return [(0, cut), (cut + 1, len(text))] if cut < len(text) else [(0, cut)]


@pytest.mark.parametrize("reply", ['[{"r": 0, "c": [-1]}]', '[{"r": -2, "c": [1]}]'])
def test_a_negative_number_counted_from_the_end(reply: str):
    row = {"response_begin": 0, "response_end": 4, "response_text": "One."}
    row |= {"citation_doc_id": "1", "citation_begin": 7, "citation_end": 12, "citation_text": "Beta."}
    assert reasons("citation_generation", Completion(reply), [row]) == {Deviation.NEGATIVE}
    other = row | {"citation_begin": 0, "citation_end": 6, "citation_text": "Alpha."}
    assert reasons("citation_generation", Completion(reply), [other]) == set()


QUOTE, END = token(('"', 1.0)), token(('answerable"', 1.0))
EMPTY = (QUOTE, token(("un", 0.6), ("", 0.2), ("answer", 0.1)), END)
MERGED = (token(('"answerable"', 0.9), ('"unanswerable"', 0.1)),)


@pytest.mark.parametrize(
    ("text", "tokens", "recorded"), [('"unanswerable"', EMPTY, 1 / 3), ('"answerable"', MERGED, 1.0)]
)
def test_tokens_that_fit_no_single_label(text: str, tokens: tuple[TokenLogprob, ...], recorded: float):
    completion = Completion(text, tokens=tokens)
    assert reasons("answerability", completion, {"answerability_likelihood": recorded}) == {Deviation.FIRST_LABEL}
    assert reasons("answerability", completion, {"answerability_likelihood": 0.77}) == set()
    plain = replace(completion, tokens=(QUOTE, token((text[1:], 0.9), ("x", 0.1))))
    assert reasons("answerability", plain, {"answerability_likelihood": 0.5}) == set()


def test_an_unknown_label_that_was_given_a_value():
    reply = '[{"r": 0, "f": "bogus", "e": "x"}, {"r": 1, "f": "partial", "e": "y"}]'
    rows = [
        {"response_begin": 0, "response_end": 4, "response_text": "One.", "explanation": "x"},
        {"response_begin": 5, "response_end": 9, "response_text": "Two.", "explanation": "y"},
    ]
    recorded = [rows[0] | {"faithfulness_likelihood": 0.0}, rows[1] | {"faithfulness_likelihood": 0.5}]
    assert reasons("hallucination_detection", Completion(reply), recorded) == {Deviation.UNDEFINED}
    recorded[1]["faithfulness_likelihood"] = 0.9
    assert reasons("hallucination_detection", Completion(reply), recorded) == set()
