"""The typed front door: what goes in, what is refused in one line, and what comes out."""

import copy
import json
import math
import pickle
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
from answering import Answering, scoring, writing
from hypothesis import given
from hypothesis import strategies as st
from intrinsic_rows import turns
from json_files import table, write_json
from refusals import refused

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Segment, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.intrinsics import (
    Answerability,
    CitationGeneration,
    ContextRelevance,
    HallucinationDetection,
    Library,
    QueryClarification,
    QueryRewrite,
)
from selfrag.intrinsics.catalog import (
    AdapterCard,
    catalog,
    check_cards,
    codec_of,
    fingerprint,
)
from selfrag.intrinsics.named import adapters_of
from selfrag.judges.sentences import merged, response_sites, source_sites
from selfrag.judges.wire import Completion
from selfrag.reflection.findings import Code
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judgment import JudgmentSource
from selfrag.reflection.requests import Failed

QUESTION = "Which fish are yellow?"
REPLY = "Purple bumble fish are yellow.  Green fish are also yellow."
TALK = turns(QUESTION, REPLY)
FISH = [
    Passage("f1", "Only one fish is yellow. It is the purple bumble fish. It swims."),
    Passage("f2", "Fish swim."),
]


@pytest.mark.parametrize(
    "answerable, unanswerable, is_hard, codes",
    [
        (0.6, 0.2, False, []),
        (0.1, 0.9, False, []),
        (0.2, 0.1, False, [Code.LOW_COVERAGE]),
        (1.0, 0.0, True, [Code.NO_LOGPROBS]),
    ],
)
def test_answerability_is_a_probability(answerable, unanswerable, is_hard, codes):
    executor = scoring(answerable=answerable, unanswerable=unanswerable)
    for adapter, source, passages, evidence in (
        (None, JudgmentSource.JUDGE, FISH, None),
        ("ad", JudgmentSource.ADAPTER, FISH[:1], "f1"),
    ):
        result = Answerability.on(executor, adapter=adapter)(QUESTION, passages)
        mass = answerable + unanswerable
        assert result.answerable == pytest.approx(answerable / mass)
        assert bool(result) is (answerable > unanswerable)
        judgment = result.judgment
        assert judgment.coverage == pytest.approx(mass)
        assert judgment.source == (JudgmentSource.HARD if is_hard else source)
        assert judgment.evidence == evidence
        assert [note.code for note in result.diagnostics] == codes
        assert executor.requests[-1].adapter == adapter


AMOUNTS = """
answerability | {} | {"judgment": null, "answerable": null, "holds": false}
answerability | {"answerable": 2.0} | {"judgment": null}
uncertainty | {"8": 0.25, "9": 0.5, "0": 0.25} | {"decile": 0.95, "certainty": 0.7}
requirement_check | {"yes": 0.9, "no": 0.1} | {"met": 0.9, "holds": true}
requirement_check | {"yes": 0.1, "no": 0.9} | {"met": 0.1, "holds": false}
hallucination_detection | {"faithful": 0.9, "unfaithful": 0.1} | {"lowest": 0.9, "is_hallucinated": false}
hallucination_detection | {"faithful": 0.5, "partial": 0.5} | {"lowest": 0.75}
hallucination_detection | {"unfaithful": 0.7, "faithful": 0.3} | {"lowest": 0.3, "is_hallucinated": true}
hallucination_detection | {"NA": 0.9, "faithful": 0.1} | {"lowest": null, "is_hallucinated": null}
"""
"""Undefined is not unanswerable, 2 is no probability, and NA is no claim."""


@pytest.mark.parametrize("name, probabilities, expected", table(AMOUNTS))
def test_what_probabilities_amount_to(name, probabilities, expected):
    expected, executor = json.loads(expected), scoring(**json.loads(probabilities))
    judge = Library(executor)[f"{name}.prompt"]
    talk = TALK if "assistant" in judge.needs.ends_with else QUESTION
    arguments = dict.fromkeys(judge.needs.arguments, "be short")
    result = judge(talk, FISH, **arguments)
    assert {name: getattr(result, name) for name in expected} == pytest.approx(expected)
    assert bool(result.diagnostics) == ("judgment" in expected)
    if isinstance(judge, HallucinationDetection):
        sites = [sentence.site for sentence in result.sentences]
        assert [(site.begin, site.end) for site in sites] == [(0, 30), (32, 59)]
        assert all(REPLY[site.begin : site.end] == site.text for site in sites)
    if arguments:
        (message,) = executor.requests[0].prompt.messages
        assert "Requirement: be short" in message.content


def test_citations_are_spans_and_neighbours_are_merged():
    shares = {"00": 0.02, "01": 0.4, "02": 0.4, "03": 0.02, "04": 0.1}
    result = CitationGeneration.on(scoring(**shares))(TALK, FISH)
    first = result.sentences[0]
    (citation,) = first.citations
    site = citation.site
    assert site.text == "Only one fish is yellow. It is the purple bumble fish."
    assert FISH[0].text[site.begin : site.end] == site.text
    assert citation.probability == pytest.approx(0.8 / 0.94)
    assert first.is_cited
    assert [record["citation_doc_id"] for record in result.records] == ["f1", "f1"]
    passages = Passage("a", "One. Two.  Three. Four."), Passage("b", "Five.")
    state = JudgeInput((), passages)
    one, two, three, four, five = source_sites(state)
    for sites, texts in (
        ([two, one, four, five], ["One. Two.", "Four.", "Five."]),
        ([three, two], ["Two.  Three."]),
    ):
        assert [site.text for site in merged(state, sites)] == texts


def test_relevance_asks_about_one_passage_at_a_time():
    executor = scoring(relevant=0.5, irrelevant=0.25, **{"partially relevant": 0.25})
    result = ContextRelevance.on(executor)(QUESTION, [*FISH, Passage("none", " ")])
    asked = [request.state.passages for request in executor.requests]
    assert asked == [(passage,) for passage in FISH]
    found = [(one.passage.id, one.relevance) for one in result.passages]
    assert found == [("f1", 0.625), ("f2", 0.625), ("none", None)]
    assert [one.judgment.evidence for one in result.passages[:2]] == ["f1", "f2"]
    assert [(note.code, note.site) for note in result.diagnostics] == [(Code.EMPTY, 2)]


WRITTEN = r"""
{"rewritten_question": "Which  fish\nswim?"} | Which fish swim?
{"rewritten_question": "which fish are Yellow?"} | which fish are Yellow?
"{\"rewritten_question\": \"Double?\"}" | Double?
```json {"rewritten_question": "Fenced?"} ``` | Fenced?
Sure! Here you go | Which fish are yellow?
{"rewritten_question": "Which fi | Which fish are yellow?
{"rewritten_question": 7} | Which fish are yellow?
{"rewritten_question": " "} | Which fish are yellow?
[1] | Which fish are yellow?
"""


@pytest.mark.parametrize("written, rewrite", table(WRITTEN))
def test_a_rewrite_is_text_or_the_original(written, rewrite):
    result = QueryRewrite.on(writing(written))(QUESTION)
    assert (result.text, result.defined) == (rewrite, rewrite != QUESTION)
    assert result.changed == (rewrite.lower() != QUESTION.lower())
    assert bool(result.diagnostics) is not result.defined


@pytest.mark.parametrize(
    "written, question, defined",
    [
        ('{"clarification": "Which year?"}', "Which year?", True),
        ('{"clarification": "CLEAR"}', None, True),
        ("?", None, False),
    ],
)
def test_clarification_asks_or_does_not(written, question, defined):
    result = QueryClarification.on(writing(written))(QUESTION)
    assert (result.question, result.defined) == (question, defined)
    assert result.needed is bool(question)


SENSELESS = r"""
answerability | "Q?" | [] | answerability: there are no passages; give passages=\[...\]
answerability | "Q?" | [" ", ""] | all 2 passages are empty
answerability | "Q?" | [""] | the passage is empty
answerability | REPLIED | ["x"] | the last turn must be of role user, not 'assistant'
hallucination_detection | "Q?" | ["x"] | must be of role assistant, not 'user'; add the reply
citation_generation | [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": " \n"}] | ["x"] | is empty
query_rewrite | "  " | null | query_rewrite: the question is empty
query_rewrite | [] | null | the conversation is empty
query_rewrite | 7 | null | not int
query_rewrite | ["hello"] | null | turn 1 must be an object
query_rewrite | [{"role": "user"}] | null | turn 1 \(user\): content must be text, not NoneType
query_rewrite | [{"content": "x"}] | null | turn 1 has no role
uncertainty | [{"role": "tool", "content": "x"}] | null | role assistant or user, not 'tool'
answerability | "Q?" | "one text" | passages must be a list, not one str
answerability | "Q?" | [3] | passage 1 must be a Passage, text or an object, not int
answerability | "Q?" | [{"id": "x"}] | passage 1 has no text
requirement_check | REPLIED | null | the argument 'requirement' is missing; give requirement='...'
"""


@pytest.mark.parametrize("name, talk, passages, message", table(SENSELESS))
def test_what_makes_no_sense_is_refused_before_a_model_is_asked(
    name, talk, passages, message
):
    executor = scoring()
    asked = json.loads(talk.replace("REPLIED", json.dumps(TALK)))
    with refused(message):
        Library(executor)[f"{name}.prompt"](asked, json.loads(passages))
    assert executor.requests == []


def test_a_request_that_was_not_served_raises_alone_and_stays_in_its_row_in_a_batch():
    def answer(request):
        if "long" in request.state.query:
            return Failed("too \x1b[31mlong")
        return Completion(scores=((math.log(0.9), math.log(0.1)),))

    judge = Answerability.on(Answering(answer))
    with refused("answerability: too \ufffd"):
        judge("long question", FISH)
    states = [judge.state(text, FISH) for text in ("long question", "short")]
    bad, good = judge.batch(states)
    assert bad.failure
    assert bad.judgment is None
    assert good.answerable == pytest.approx(0.9)
    with refused("conversation 2: query_rewrite"):
        QueryRewrite.on(scoring()).batch(["Who?", ""])


def test_messages_and_objects_are_turns_passages_are_numbered_and_states_travel():
    given = ["a", {"doc_id": 7, "text": "b", "title": "T"}, {"text": "c"}]
    made = Answerability.state([Message("user", "Who?")], given)
    passages = [(p.id, p.text, p.title) for p in made.passages]
    assert passages == [("1", "a", ""), ("7", "b", "T"), ("3", "c", "")]
    complete = replace(made, arguments={"requirement": "x"}, extra={"temperature": 0})
    assert pickle.loads(pickle.dumps(complete)) == complete == copy.deepcopy(complete)


@pytest.mark.parametrize("kind", catalog())
def test_inputs_are_not_changed_and_results_are_plain_values(kind):
    talk = copy.deepcopy(TALK if "assistant" in kind.needs.ends_with else TALK[:1])
    passages = [{"id": "f1", "text": "Fish.\x1b[2J"}]
    before = copy.deepcopy((talk, passages))
    needed = (*kind.needs.arguments, *kind.needs.optional)
    judge = kind.on(Answering(lambda request: Completion("{}")))
    result = judge(talk, passages, **dict.fromkeys(needed, "be short"))
    assert (talk, passages) == before
    assert json.loads(json.dumps(result.as_dict()))["diagnostics"]
    assert "\x1b" not in "".join(result.lines())


TEXT = "Marie Curie did. In 1898."
CITED = Passage("p1", "Marie Curie discovered radium.", "Radium")
ANSWER = Answer(
    "Who discovered radium?",
    TEXT,
    (Segment(TEXT, 0, len(TEXT), CITED, {}, 0.0, 0),),
    Usage(),
    Trace("Who discovered radium?", Decoding(), (), (), None),
)


@pytest.mark.parametrize(
    "kind, evidence, roles, passages",
    [
        (HallucinationDetection, None, ["user", "assistant"], [CITED]),
        (CitationGeneration, FISH, ["user", "assistant"], FISH),
        # the question alone goes to what judges questions
        (Answerability, None, ["user"], [CITED]),
    ],
)
def test_an_answer_is_judged_against_what_it_cites_or_what_is_given(
    kind, evidence, roles, passages
):
    executor = scoring()
    kind.on(executor)(ANSWER, evidence)
    state = executor.requests[0].state
    assert [message.role for message in state.messages] == roles
    assert [*state.passages] == passages
    with refused("this answer failed"):
        kind.on(executor)(replace(ANSWER, error="no room"))


# --- Sentences as sites -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith et al. moved to the U.S. in 1999."],
        ["See fig. 3 and vol. 2 of it.", "Then go."],
        ["It was found by Smith et al.", "They moved."],
    ],
)
def test_abbreviations_end_a_sentence_only_where_another_begins(sentences):
    state = JudgeInput((Message("assistant", " ".join(sentences)),))
    assert [site.text for site in response_sites(state, 0)] == sentences


@given(st.text(max_size=200))
def test_no_character_but_white_space_is_lost(text):
    state = JudgeInput((Message("assistant", text),), (Passage("a", text),))
    for sites in (response_sites(state, 0), source_sites(state)):
        end = 0
        for site in sites:
            assert state.holds(site)
            assert not text[end : site.begin].strip()
            end = site.end
        assert not text[end:].strip()


# --- Adapters of a library -----------------------------------------------------------------------------------------


def test_adapters_go_by_the_name_of_the_intrinsic():
    executor = scoring(answerable=0.9, unanswerable=0.1)
    library = Library(executor, {"answerability": "ad"})
    assert library.get(Answerability)("Who?", FISH)
    library["Query-Rewrite"]("Who?")
    assert [request.adapter for request in executor.requests] == ["ad", None]
    at = partial(Library.at_endpoint, "http://127.0.0.1:9")
    for load in (Library.from_pretrained, at):
        with refused("unknown intrinsic 'answers'"):  # before a model is loaded
            load("demo", adapters={"answers": "x"})


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, None),
        ({"intrinsic": "uncertainty"}, "intrinsic 'uncertainty', not 'answerability'"),
        ({"dialect": "mellea"}, "trained for dialect 'mellea', not 'chat'"),
        ({"prompt": "0" * 64}, "was trained with other prompts"),
    ],
)
def test_an_adapter_that_was_trained_for_something_else_is_refused(
    change, message, tmp_path
):
    prompt = fingerprint(codec_of(Answerability, "chat"))
    card = replace(AdapterCard("answerability", "chat", prompt), **change)
    write_json(tmp_path / AdapterCard.FILE, card.as_dict())
    for check, name in ((check_cards, "chat"), (adapters_of, "other")):
        with refused(message) if message else nullcontext():
            check({"answerability": str(tmp_path)}, name)
    with refused(r"intrinsic\.json cannot be used"):
        AdapterCard.read(tmp_path / "none")
