"""Faults of granite-common 0.4.1 and mellea 0.8.0 that must not happen here, numbered as reported.

Number 13, labels that begin alike, is a row of the likelihoods in test_codecs.py; 17, training that writes what
inference reads, is what comes back there.
"""

import copy
import json
import subprocess
import sys

import pytest
from conformance.records import plain_result
from published_codecs import published
from refusals import refused
from wire_help import ARGUMENTS, find, spell, state, token

from retrieval.passage import Passage
from selfrag.extensions.granite.chat import read_spec
from selfrag.extensions.granite.registry import DIALECTS, codec_of_spec, intrinsics_of
from selfrag.intrinsics import CitationGeneration
from selfrag.judges.wire import ChatPrompt, Completion
from selfrag.reflection.findings import Code
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judgment import JudgmentSource

TWO = "First one. Second one."
OUT = Code.OUT_OF_RANGE
DOCUMENT = "Alpha is first. Beta is second. Gamma is third."


def read(dialect, intrinsic, judge_input, reply, *tokens):
    codec = published(dialect, intrinsic)
    return codec.decode(
        codec.encode(judge_input), Completion(reply, tokens=tokens or None)
    )


def cited(raw, document=DOCUMENT):
    return read(
        "mellea", "citation_generation", state("q", TWO, documents=(document,)), raw
    )


def judged(raw, *tokens):
    return read(
        "granite-common", "answerability", state("q", documents=("d.",)), raw, *tokens
    )


def texts(reflection):
    """What each sentence cites; None where that is undefined."""
    return [
        f.judgment and [citation.site.text for citation in f.citations]
        for f in reflection.findings
    ]


def codes(reflection):
    return {note.code for note in reflection.diagnostics}


def test_01_boolean_labels_have_their_probability():
    tokens = (token(("false", 0.8), ("true", 0.2)),)
    reflection = read(
        "granite-common",
        "requirement_check",
        state("q", "a", requirement="short"),
        "false",
        *tokens,
    )
    assert reflection.judgments[0].score == pytest.approx(0.2)


@pytest.mark.parametrize(
    "raw, expected, code",
    [
        # 02
        (
            '[{"r":0,"c":[1,1]},{"r":1,"c":[]}]',
            [["Beta is second."], []],
            Code.DUPLICATE,
        ),
        (
            '[{"r":0,"c":[1]},{"r":0,"c":[0]},{"r":1,"c":[]}]',
            [["Beta is second."], []],
            Code.DUPLICATE,
        ),
        # 03: a number out of range costs only itself, and a sentence of which nothing is left is undefined
        (
            '[{"r":0,"c":[99,2]},{"r":7,"c":[0]},{"r":1,"c":[0]}]',
            [["Gamma is third."], ["Alpha is first."]],
            OUT,
        ),
        ('[{"r":0,"c":[-1]},{"r":1,"c":[0]}]', [None, ["Alpha is first."]], OUT),  # 04
        # 12: kept as far as it goes
        ('[{"r":0,"c":[2,', [["Gamma is third."], None], Code.TRUNCATED),
    ],
)
def test_02_03_04_12_what_of_a_list_is_cited(raw, expected, code):
    reflection = cited(raw)
    assert texts(reflection) == expected
    assert code in codes(reflection)


@pytest.mark.parametrize("dialect", ["granite-common", "mellea", "granite-3.3"])
def test_05_offsets_are_into_the_callers_text(dialect):
    original = "Purple bumble fish are yellow.  Green fish\n\nare also yellow.  Third."
    number, note = ("i", "r") if dialect == "granite-3.3" else ("r", "e")
    rows = [{number: i, "f": "faithful", note: ""} for i in range(3)]
    reflection = read(
        dialect,
        "hallucination_detection",
        state("q", original, documents=("d.",)),
        json.dumps(rows),
    )
    sites = [finding.site for finding in reflection.findings]
    assert [site.text for site in sites] == [
        "Purple bumble fish are yellow.",
        "Green fish\n\nare also yellow.",
        "Third.",
    ]
    assert all(original[site.begin : site.end] == site.text for site in sites)


def test_06_a_tag_in_a_text_is_text():
    document = "Text with <c1> inside it. Another one."
    assert texts(cited('[{"r":0,"c":[1]},{"r":1,"c":[]}]', document)) == [
        ["Another one."],
        [],
    ]
    request = published("mellea", "citation_generation").encode(
        state("q <r0> q", "<r1> A.", documents=(document,))
    )
    assert isinstance(request.prompt, ChatPrompt)
    shown = " ".join(
        [
            *(m.content for m in request.prompt.messages[:-1]),
            request.prompt.documents[0]["text"],
        ]
    )
    assert shown.count("<c1>") == shown.count("<r0>") == shown.count("<c0>") == 1
    assert "<r1>" not in shown


def test_07_inputs_stay_as_they_are():
    extra = {
        "extra_body": {"documents": [{"text": "a"}], "other": {"x": [1]}},
        "temperature": 0.5,
    }
    judge_input = JudgeInput(
        (Message("user", "q"), Message("assistant", TWO)),
        (Passage("7", DOCUMENT),),
        {},
        extra,
    )
    before = copy.deepcopy(
        (judge_input.messages, judge_input.passages, dict(judge_input.arguments), extra)
    )
    for dialect in DIALECTS:
        for intrinsic in set(intrinsics_of(dialect)) & {
            "citation_generation",
            "hallucination_detection",
        }:
            read(dialect, intrinsic, judge_input, "[]")
    assert before == (
        judge_input.messages,
        judge_input.passages,
        dict(judge_input.arguments),
        dict(judge_input.extra),
    )


def test_08_an_empty_document_keeps_its_place_and_no_document_is_refused_in_front():
    judge_input = JudgeInput(
        (Message("user", "q"), Message("assistant", TWO)),
        (Passage("a", " "), Passage("b", DOCUMENT)),
    )
    reflection = read(
        "mellea", "citation_generation", judge_input, '[{"r":0,"c":[0]},{"r":1,"c":[]}]'
    )
    assert reflection.findings[0].citations[0].site.passage == 1
    assert (
        published("mellea", "citation_generation").encode(state("q", TWO)).sources == ()
    )
    with refused("there are no passages"):
        CitationGeneration.check(state("q", TWO))


@pytest.mark.parametrize(
    "first, score, coverage",
    [
        # 09: an empty token is no label
        ([("un", 0.6), ("", 0.2), ("answer", 0.1)], 0.1 / 0.7, 0.7),
        # 10: a quote or a space may be part of the token
        ([('"un', 0.9), ('"answer', 0.1)], 0.1, 1.0),
        ([(' "un', 0.9), (' "answer', 0.1)], 0.1, 1.0),
        ([("un", 0.1), ("answer", 0.1), ("x", 0.8)], 0.5, 0.2),
    ],
)
def test_09_10_alternatives_count_for_the_label_that_they_begin(first, score, coverage):
    opening = () if '"' in first[0][0] else spell('"')
    reflection = judged(
        '"unanswerable"', *opening, token(*first), *spell('answerable"')
    )
    (judgment,) = reflection.judgments
    assert (judgment.score, judgment.coverage) == (
        pytest.approx(score),
        pytest.approx(coverage),
    )
    assert (Code.LOW_COVERAGE in codes(reflection)) == (coverage < 0.5)


@pytest.mark.parametrize(
    "key, literal, labels", [("a1", "true", (True, False)), ("a", "null", (None, True))]
)
def test_11_digits_in_a_key_and_a_null_are_json(key, literal, labels):
    rule = {
        "type": "likelihood",
        "input_path": [key],
        "categories_to_values": [[labels[0], 1.0], [labels[1], 0.0]],
    }
    codec = codec_of_spec(
        read_spec("any", {"transformations": [rule]}), exact=False, find=find
    )
    alternative = json.dumps(labels[1])
    tokens = (
        *spell(f'{{"{key}":'),
        token((f" {literal}", 0.75), (f" {alternative}", 0.25)),
        *spell("}"),
    )
    completion = Completion(f'{{"{key}": {literal}}}', tokens=tokens)
    assert plain_result(codec, codec.encode(state("q")), completion) == {
        key: pytest.approx(0.75)
    }


def test_12_without_log_probabilities_a_label_is_hard():
    reflection = judged('"unanswerable"')
    assert (reflection.judgments[0].source, reflection.judgments[0].score) == (
        JudgmentSource.HARD,
        0.0,
    )
    assert Code.NO_LOGPROBS in codes(reflection)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_14_16_no_constraint_is_lost_in_silence_and_garbage_is_no_answer(dialect):
    for intrinsic in set(intrinsics_of(dialect)) - {"generation"}:
        codec = published(dialect, intrinsic)
        request = codec.encode(state("q", "a.", documents=("d.",), **ARGUMENTS))
        assert "guided" not in str(request.prompt)
        assert request.constraint is not None or dialect == "granite-3.2", intrinsic
        garbage = codec.decode(request, Completion("I am afraid I cannot do that."))
        assert (garbage.judgments, garbage.text) == ((), None)
        assert garbage.diagnostics


def test_15_16_double_encoded_json_is_decoded_and_an_unknown_label_is_undefined():
    judge_input = state("q", f"{TWO} Third. Fourth.", documents=("d.",))
    reply = {"<r0>": "0.2-0.3", "<r1>": "0.1-0", "<r2>": "0.25-0.35", "<r3>": "NA"}
    reflection = read(
        "granite-3.2",
        "hallucination_detection",
        judge_input,
        json.dumps(json.dumps(reply)),
    )
    assert [f.judgment and f.judgment.label for f in reflection.findings] == [
        "0.2-0.3",
        "0.1-0",
        None,
        "NA",
    ]
    assert [judgment.score for judgment in reflection.judgments[:2]] == pytest.approx(
        [0.25, 0.05]
    )
    assert not reflection.judgments[2].defined
    assert Code.UNKNOWN_LABEL in codes(reflection)
    for dialect in ("granite-3.2", "granite-3.3"):  # a decile is its middle
        assert read(dialect, "uncertainty", state("q", "a"), "7").judgments[
            0
        ].mode == pytest.approx(0.75)


def test_18_importing_loads_nothing_heavy_and_nothing_undeclared():
    program = (
        "import sys; import selfrag.extensions.granite.registry;"
        "print([m for m in ('nltk', 'yaml', 'spacy', 'torch', 'vllm', 'transformers', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
