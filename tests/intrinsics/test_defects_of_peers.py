"""Faults of granite-common 0.4.1 and mellea 0.8.0 that must not happen here, one test each, numbered as reported."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from wire_help import ARGUMENTS, exact, find, plain, published, state, token

from conformance.records import plain_result
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.intrinsics.contract import ChatPrompt, Code, Completion, Gold, Message, Reflection, State
from selfrag.intrinsics.dialects.chat import read_spec
from selfrag.intrinsics.dialects.output import likelihood
from selfrag.intrinsics.dialects.registry import DIALECTS, codec_of_spec, intrinsics_of
from selfrag.intrinsics.questions import Answerability
from selfrag.intrinsics.responses import CitationGeneration
from selfrag.reflection.judgment import Source

TWO = "First one. Second one."
OUT = Code.OUT_OF_RANGE
DOCUMENT = "Alpha is first. Beta is second. Gamma is third."


def cited(raw: str, document: str = DOCUMENT, response: str = TWO) -> Reflection:
    codec = published("mellea", "citation_generation")
    return codec.decode(codec.encode(state("q", response, documents=(document,))), Completion(raw))


def texts(reflection: Reflection) -> list[list[str]]:
    return [[citation.site.text for citation in finding.citations] for finding in reflection.findings]


def codes(reflection: Reflection) -> set[Code]:
    return {note.code for note in reflection.diagnostics}


def judged(raw: str, *tokens, dialect: str = "granite-common") -> Reflection:
    codec = published(dialect, "answerability")
    return codec.decode(codec.encode(state("q", documents=("d.",))), Completion(raw, tokens=tokens or None))


def test_01_boolean_labels_have_their_probability():
    codec = published("granite-common", "requirement_check")
    request = codec.encode(state("q", "a", requirement="short"))
    found = codec.decode(request, Completion("false", tokens=(token(("false", 0.8), ("true", 0.2)),)))
    assert found.judgments[0].score == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("raw", "found", "code"),
    [
        ('[{"r":0,"c":[1,1]},{"r":0,"c":[1]},{"r":1,"c":[]}]', [["Beta is second."], []], Code.DUPLICATE),  # 02
        # 03: a number out of range costs only itself
        ('[{"r":0,"c":[99,2]},{"r":7,"c":[0]},{"r":1,"c":[0]}]', [["Gamma is third."], ["Alpha is first."]], OUT),
        ('[{"r":0,"c":[-1]},{"r":1,"c":[0]}]', [[], ["Alpha is first."]], OUT),  # 04
        ('[{"r":0,"c":[2,', [["Gamma is third."], []], Code.TRUNCATED),  # 12: kept as far as it goes
    ],
)
def test_02_03_04_12_what_of_a_list_is_cited(raw: str, found: list[list[str]], code: Code):
    reflection = cited(raw)
    assert texts(reflection) == found
    assert code in codes(reflection)


@pytest.mark.parametrize(("raw", "sentence"), [('[{"r":0,"c":[99]},{"r":1,"c":[]}]', 0), ('[{"r":0,"c":[2,', 1)])
def test_03_12_a_sentence_without_a_record_that_counts_is_undefined(raw: str, sentence: int):
    assert cited(raw).findings[sentence].judgment is None


@pytest.mark.parametrize("dialect", ["granite-common", "mellea", "granite-3.3"])
def test_05_offsets_are_into_the_callers_text(dialect: str):
    original = "Purple bumble fish are yellow.  Green fish\n\nare also yellow.  Third."
    codec = published(dialect, "hallucination_detection")
    request = codec.encode(state("q", original, documents=("d.",)))
    number, note = ("i", "r") if dialect == "granite-3.3" else ("r", "e")
    rows = [{number: i, "f": "faithful", note: ""} for i in range(3)]
    found = codec.decode(request, Completion(json.dumps(rows)))
    assert [f.site.text for f in found.findings] == [
        "Purple bumble fish are yellow.",
        "Green fish\n\nare also yellow.",
        "Third.",
    ]
    assert all(original[f.site.begin : f.site.end] == f.site.text for f in found.findings)


def test_06_a_tag_in_a_text_is_text():
    document = "Text with <c1> inside it. Another one."
    found = cited('[{"r":0,"c":[1]},{"r":1,"c":[]}]', document)
    assert [[citation.site.text for citation in finding.citations] for finding in found.findings] == [
        ["Another one."],
        [],
    ]
    request = published("mellea", "citation_generation").encode(state("q <r0> q", "<r1> A.", documents=(document,)))
    assert isinstance(request.prompt, ChatPrompt)
    shown = " ".join([*(m.content for m in request.prompt.messages[:-1]), request.prompt.documents[0]["text"]])
    assert shown.count("<c1>") == shown.count("<r0>") == shown.count("<c0>") == 1
    assert "<r1>" not in shown


def test_07_inputs_stay_as_they_are():
    extra = {"extra_body": {"documents": [{"text": "a"}], "other": {"x": [1]}}, "temperature": 0.5}
    given = State((Message("user", "q"), Message("assistant", TWO)), (Passage("7", DOCUMENT),), {}, extra)
    before = copy.deepcopy((given.messages, given.passages, dict(given.arguments), extra))
    for dialect in DIALECTS:
        for intrinsic in set(intrinsics_of(dialect)) & {"citation_generation", "hallucination_detection"}:
            codec = published(dialect, intrinsic)
            codec.decode(codec.encode(given), Completion("[]"))
    assert before == (given.messages, given.passages, dict(given.arguments), dict(given.extra))


def test_08_an_empty_document_keeps_its_place():
    given = State((Message("user", "q"), Message("assistant", TWO)), (Passage("a", " "), Passage("b", DOCUMENT)))
    codec = published("mellea", "citation_generation")
    found = codec.decode(codec.encode(given), Completion('[{"r":0,"c":[0]},{"r":1,"c":[]}]'))
    assert found.findings[0].citations[0].site.passage == 1


def test_08_no_document_is_a_clear_error_in_front_and_accepted_below():
    given = state("q", TWO)
    assert published("mellea", "citation_generation").encode(given).sources == ()
    intrinsic = CitationGeneration(executor=None, codec=published("mellea", "citation_generation"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there are no passages"):
        intrinsic.check(given)


def test_09_an_empty_token_is_no_label():
    tokens = (*plain('"'), token(("un", 0.6), ("", 0.2), ("answer", 0.1)), *plain('answerable"'))
    found = judged('"unanswerable"', *tokens)
    assert found.judgments[0].score == pytest.approx(0.1 / 0.7)
    assert found.judgments[0].coverage == pytest.approx(0.7)


@pytest.mark.parametrize("first", ['"un', ' "un'])
def test_10_a_quote_or_a_space_may_be_part_of_the_token(first: str):
    tokens = (token((first, 0.9), (first.replace("un", "answer"), 0.1)), *plain('answerable"'))
    assert judged('"unanswerable"', *tokens).judgments[0].score == pytest.approx(0.1)


@pytest.mark.parametrize(("key", "literal", "labels"), [("a1", "true", (True, False)), ("a", "null", (None, True))])
def test_11_digits_in_a_key_and_a_null_are_json(key: str, literal: str, labels: tuple[object, ...]):
    rule = {"type": "likelihood", "input_path": [key], "categories_to_values": [[labels[0], 1.0], [labels[1], 0.0]]}
    codec = codec_of_spec(read_spec("any", {"transformations": [rule]}), exact=False, find=find)
    other = json.dumps(labels[1])
    tokens = (*plain(f'{{"{key}":'), token((f" {literal}", 0.75), (f" {other}", 0.25)), *plain("}"))
    completion = Completion(f'{{"{key}": {literal}}}', tokens=tokens)
    assert plain_result(codec, codec.encode(state("q")), completion) == {key: pytest.approx(0.75)}


def test_12_without_log_probabilities_a_label_is_hard():
    found = judged('"unanswerable"')
    assert found.judgments[0].source is Source.HARD
    assert found.judgments[0].score == 0.0
    assert Code.NO_LOGPROBS in codes(found)


def test_13_labels_that_begin_alike_have_exact_sequence_probabilities():
    surfaces = ('"relevant"', '"irrelevant"', '"rel"')
    tokens = (*plain('"'), token(("rel", 0.7), ("ir", 0.3)), token(('"', 0.6), ("evant", 0.4)))
    found = likelihood(tokens, '"rel"', (0, 5), surfaces)
    assert found is not None
    assert found.distribution == pytest.approx((0.28, 0.3, 0.42))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_14_no_constraint_is_lost_in_silence(dialect: str):
    for intrinsic in intrinsics_of(dialect):
        codec = published(dialect, intrinsic)
        given = state("q", "a." if "user" not in _last(intrinsic) else "q", documents=("d.",), **ARGUMENTS)
        request = codec.encode(given)
        assert "guided" not in str(request.prompt)
        if dialect not in ("granite-3.2",) and intrinsic != "generation":
            assert request.constraint is not None, intrinsic
        garbage = codec.decode(request, Completion("I am afraid I cannot do that."))
        if intrinsic != "generation":
            assert not garbage.judgments
            assert garbage.text is None
            assert garbage.diagnostics


def _last(intrinsic: str) -> tuple[str, ...]:
    return ("user",) if intrinsic in ("answerability", "query_rewrite", "context_relevance") else ("assistant",)


def test_15_double_encoded_json_is_decoded_and_results_are_typed():
    codec = published("granite-3.2", "hallucination_detection")
    request = codec.encode(state("q", TWO, documents=("d.",)))
    found = codec.decode(request, Completion(json.dumps(json.dumps({"<r0>": "0.2-0.3", "<r1>": "0.1-0"}))))
    assert [judgment.label for judgment in found.judgments] == ["0.2-0.3", "0.1-0"]
    assert [judgment.score for judgment in found.judgments] == pytest.approx([0.25, 0.05])


@pytest.mark.parametrize("dialect", ["granite-3.2", "granite-3.3"])
def test_16_a_decile_is_its_middle(dialect: str):
    codec = published(dialect, "uncertainty")
    found = codec.decode(codec.encode(state("q", "a")), Completion("7"))
    assert found.judgments[0].mode == pytest.approx(0.75)


def test_16_an_unknown_label_is_undefined():
    codec = published("granite-3.2", "hallucination_detection")
    request = codec.encode(state("q", TWO, documents=("d.",)))
    found = codec.decode(request, Completion('{"<r0>": "0.25-0.35", "<r1>": "NA"}'))
    assert found.findings[0].judgment is None
    assert found.findings[1].judgment is not None
    assert not found.findings[1].judgment.defined
    assert Code.UNKNOWN_LABEL in codes(found)


@pytest.mark.parametrize("dialect", ["granite-3.2", "granite-3.3"])
def test_16_garbage_is_no_answer(dialect: str):
    codec = published(dialect, "answerability")
    found = codec.decode(codec.encode(state("q", documents=("d.",))), Completion("<invalid model response>"))
    assert Answerability(executor=None, codec=codec).result(found).answerable is None  # type: ignore[arg-type]
    assert found.diagnostics


def test_17_training_writes_what_inference_reads():
    codec = exact("mellea", "answerability")
    request = codec.encode(state("q", documents=("d.",)))
    (target,) = codec.teach(request, Gold(labels=("unanswerable",)))
    (slot,) = request.slots
    assert (target.prefill, target.text) == (slot.prefill, slot.surfaces[1])
    wire = replace(codec, exact=False)
    (target,) = wire.teach(wire.encode(request.state), Gold(labels=("unanswerable",)))
    assert wire.decode(wire.encode(request.state), Completion(target.text)).judgments[0].label == "unanswerable"


def test_18_importing_loads_nothing_heavy_and_nothing_undeclared():
    program = (
        "import sys; import selfrag.intrinsics.dialects.registry;"
        "print([m for m in ('nltk', 'yaml', 'spacy', 'torch', 'vllm', 'transformers', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_low_coverage_is_said():
    tokens = (*plain('"'), token(("un", 0.1), ("answer", 0.1), ("x", 0.8)), *plain('answerable"'))
    found = judged('"unanswerable"', *tokens)
    assert Code.LOW_COVERAGE in codes(found)
    assert math.isclose(found.judgments[0].coverage, 0.2)
