"""The typed front door: what goes in, what is refused in one line, and what comes out."""

import math
from dataclasses import replace

import pytest
from answering import Answering, scoring, writing

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Segment, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.errors import UserError
from selfrag.intrinsics import (
    Answerability,
    CitationGeneration,
    ContextRelevance,
    HallucinationDetection,
    Message,
    QueryClarification,
    QueryRewrite,
    RequirementCheck,
    Uncertainty,
)
from selfrag.intrinsics.catalog import catalog
from selfrag.intrinsics.contract import Code, Completion, Failed
from selfrag.reflection.judgment import Source

QUESTION = "Which fish are yellow?"
REPLY = "Purple bumble fish are yellow.  Green fish are also yellow."
TALK = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": REPLY}]
FISH = [Passage("f1", "Only one fish is yellow. It is the purple bumble fish. It swims."), Passage("f2", "Fish swim.")]


@pytest.mark.parametrize(
    ("probabilities", "answerable", "source", "codes"),
    [
        ({"answerable": 0.6, "unanswerable": 0.2}, 0.75, Source.JUDGE, []),
        ({"answerable": 0.1, "unanswerable": 0.9}, 0.1, Source.JUDGE, []),
        ({"answerable": 0.2, "unanswerable": 0.1}, 2 / 3, Source.JUDGE, [Code.LOW_COVERAGE]),
        ({"answerable": 1.0}, 1.0, Source.HARD, [Code.NO_LOGPROBS]),
    ],
)
def test_answerability_is_a_probability(probabilities, answerable, source, codes):
    result = Answerability(scoring(**probabilities))(QUESTION, FISH)
    assert result.answerable == pytest.approx(answerable)
    assert bool(result) == (answerable >= 0.5)
    assert result.judgment.coverage == pytest.approx(sum(probabilities.values()))
    assert (result.judgment.source, [note.code for note in result.diagnostics]) == (source, codes)
    assert result.judgment.evidence is None  # two passages


def test_an_adapter_is_named_as_the_source_and_the_only_passage_as_the_evidence():
    executor = scoring(answerable=0.5, unanswerable=0.5)
    result = Answerability(executor, adapter="ad")(QUESTION, FISH[:1])
    assert executor.requests[0].adapter == "ad"
    assert (result.judgment.source, result.judgment.evidence) == (Source.ADAPTER, "f1")


def test_no_probability_is_undefined_and_not_unanswerable():
    result = Answerability(scoring())(QUESTION, FISH)
    assert (result.judgment, result.answerable, bool(result)) == (None, None, False)
    assert [note.code for note in result.diagnostics] == [Code.MISSING]


def test_certainty_has_a_distribution_an_expectation_and_a_mode():
    result = Uncertainty(scoring(**{"8": 0.25, "9": 0.5, "0": 0.25}))(TALK)
    assert result.judgment.distribution[8:] == pytest.approx((0.25, 0.5))
    assert result.decile == pytest.approx(0.95)
    assert result.certainty == pytest.approx(0.25 * 0.05 + 0.25 * 0.85 + 0.5 * 0.95)


def test_faithfulness_is_a_row_a_sentence_with_offsets():
    result = HallucinationDetection(scoring(faithful=0.7, partial=0.2, unfaithful=0.1))(TALK, FISH)
    assert [(s.site.begin, s.site.end) for s in result.sentences] == [(0, 30), (32, 59)]
    assert [REPLY[s.site.begin : s.site.end] for s in result.sentences] == [s.site.text for s in result.sentences]
    assert result.sentences[0].faithfulness == pytest.approx(0.8)
    assert result.sentences[0].label == "faithful"
    assert result.lowest == pytest.approx(0.8)
    assert result.is_hallucinated is False


def test_a_sentence_that_claims_nothing_is_left_out_of_the_scores():
    result = HallucinationDetection(scoring(NA=0.9, faithful=0.1))(TALK, FISH)
    assert [s.label for s in result.sentences] == ["NA", "NA"]
    assert [s.faithfulness for s in result.sentences] == [None, None]
    assert result.lowest is None
    assert result.is_hallucinated is None


def test_citations_are_spans_and_neighbours_are_merged():
    executor = scoring(**{"00": 0.02, "01": 0.4, "02": 0.4, "03": 0.02, "04": 0.1})
    result = CitationGeneration(executor)(TALK, FISH)
    first = result.sentences[0]
    (citation,) = first.citations
    assert citation.site.text == "Only one fish is yellow. It is the purple bumble fish."
    assert FISH[0].text[citation.site.begin : citation.site.end] == citation.site.text
    assert citation.probability == pytest.approx(0.8 / 0.94)
    assert first.is_cited
    assert result.records[0]["citation_doc_id"] == "f1"
    assert len(result.records) == 2


def test_a_sentence_that_was_not_scored_is_undefined():
    def answer(request):
        return Completion(scores=(None, tuple(math.log(0.2) for _ in request.slots[1].surfaces)))

    result = CitationGeneration(Answering(answer))(TALK, FISH)
    assert [s.is_cited for s in result.sentences] == [None, True]
    assert [(note.code, note.site) for note in result.diagnostics] == [(Code.MISSING, 0)]


def test_relevance_asks_about_one_passage_at_a_time():
    executor = scoring(relevant=0.5, irrelevant=0.25, **{"partially relevant": 0.25})
    result = ContextRelevance(executor)(QUESTION, [*FISH, Passage("none", " ")])
    assert [len(request.state.passages) for request in executor.requests] == [1, 1]
    assert [judged.passage.id for judged in result.passages] == ["f1", "f2", "none"]
    assert [judged.relevance for judged in result.passages] == [pytest.approx(0.625), pytest.approx(0.625), None]
    assert [judged.judgment.evidence for judged in result.passages[:2]] == ["f1", "f2"]
    assert [(note.code, note.site) for note in result.diagnostics] == [(Code.EMPTY, 2)]


@pytest.mark.parametrize(
    ("written", "rewrite", "changed", "defined"),
    [
        ('{"rewritten_question": "Which  fish\\nswim?"}', "Which fish swim?", True, True),
        ('{"rewritten_question": "which fish are Yellow?"}', "which fish are Yellow?", False, True),
        ('"{\\"rewritten_question\\": \\"Double?\\"}"', "Double?", True, True),
        ('```json\n{"rewritten_question": "Fenced?"}\n```', "Fenced?", True, True),
        ("Sure! Here you go", QUESTION, False, False),
        ('{"rewritten_question": "Which fi', QUESTION, False, False),
        ('{"rewritten_question": 7}', QUESTION, False, False),
        ('{"question": "Which fish?"}', QUESTION, False, False),
        ('{"rewritten_question": " "}', QUESTION, False, False),
        ("[1]", QUESTION, False, False),
        ("", QUESTION, False, False),
    ],
)
def test_a_rewrite_is_text_or_the_original(written, rewrite, changed, defined):
    result = QueryRewrite(writing(written))(QUESTION)
    assert (result.text, result.changed, result.defined) == (rewrite, changed, defined)
    assert bool(result.diagnostics) is not defined


def test_clarification_asks_or_does_not():
    asked = QueryClarification(writing('{"clarification": "Which year?"}'))(QUESTION)
    clear = QueryClarification(writing('{"clarification": "CLEAR"}'))(QUESTION)
    broken = QueryClarification(writing("?"))(QUESTION)
    assert (asked.needed, asked.question) == (True, "Which year?")
    assert (clear.needed, clear.defined) == (False, True)
    assert (broken.needed, broken.defined) == (False, False)


def test_a_requirement_has_a_truth_value():
    check = RequirementCheck(scoring(yes=0.9, no=0.1))
    assert check(TALK, requirement="be short")
    assert not RequirementCheck(scoring(yes=0.1, no=0.9))(TALK, requirement="be short")
    assert "Requirement: be short" in check.executor.requests[0].prompt.messages[0].content


@pytest.mark.parametrize(
    ("kind", "talk", "passages", "message"),
    [
        (Answerability, QUESTION, [], "answerability: there are no passages; give passages=[...]"),
        (Answerability, QUESTION, [" ", ""], "all 2 passages are empty"),
        (Answerability, QUESTION, [""], "the passage is empty"),
        (Answerability, TALK, FISH, "the last turn must be of role user, not 'assistant'"),
        (HallucinationDetection, QUESTION, FISH, "must be of role assistant, not 'user'; add the reply"),
        (CitationGeneration, [TALK[0], {"role": "assistant", "content": " \n"}], FISH, "the response is empty"),
        (QueryRewrite, "  ", None, "query_rewrite: the question is empty"),
        (QueryRewrite, [], None, "the conversation is empty"),
        (QueryRewrite, 7, None, "not int"),
        (QueryRewrite, ["hello"], None, "turn 1 must be an object"),
        (QueryRewrite, [{"role": "user"}], None, r"turn 1 \(user\): content must be text, not NoneType"),
        (QueryRewrite, [{"content": "x"}], None, "turn 1 has no role"),
        (Uncertainty, [{"role": "tool", "content": "x"}], None, "role assistant or user, not 'tool'"),
        (Answerability, QUESTION, "one text", "passages must be a list, not one str"),
        (Answerability, QUESTION, [3], "passage 1 must be a Passage, text or an object, not int"),
        (Answerability, QUESTION, [{"id": "x"}], "passage 1 has no text"),
        (RequirementCheck, TALK, None, "the argument 'requirement' is missing; give requirement='...'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_model_is_asked(kind, talk, passages, message):
    executor = scoring()
    with pytest.raises(UserError, match=message.replace("[...]", r"\[...\]")) as caught:
        kind(executor)(talk, passages)
    assert "\n" not in str(caught.value)
    assert executor.requests == []


def test_a_request_that_was_not_served_raises_alone_and_stays_in_its_row_in_a_batch():
    def answer(request):
        long = "long" in request.state.messages[0].content
        return Failed("too \x1b[31mlong") if long else Completion(scores=((math.log(0.9), math.log(0.1)),))

    judge = Answerability(Answering(answer))
    with pytest.raises(UserError, match="answerability: too \ufffd"):
        judge("long question", FISH)
    bad, good = judge.batch([judge.state("long question", FISH), judge.state("short", FISH)])
    assert bad.failure is not None
    assert bad.judgment is None
    assert good.answerable == pytest.approx(0.9)


def test_a_batch_names_the_conversation_that_makes_no_sense():
    with pytest.raises(UserError, match="conversation 2: query_rewrite: the question is empty"):
        QueryRewrite(scoring()).batch(["Who?", ""])


def test_messages_and_objects_are_turns_and_passages_are_numbered():
    judge = Answerability(scoring(answerable=1.0))
    state = judge.state([Message("user", "Who?")], ["a", {"doc_id": 7, "text": "b", "title": "T"}, {"text": "c"}])
    assert [p.id for p in state.passages] == ["1", "7", "3"]
    assert state.passages[1].title == "T"


@pytest.mark.parametrize("kind", catalog())
def test_inputs_are_not_changed_and_results_are_plain_values(kind):
    import copy
    import json

    talk = copy.deepcopy(TALK if "assistant" in kind.needs.ends_with else TALK[:1])
    passages = [{"id": "f1", "text": "Fish.\x1b[2J"}]
    before = copy.deepcopy((talk, passages))
    arguments = dict.fromkeys((*kind.needs.arguments, *kind.needs.optional), "be short")
    result = kind(Answering(lambda request: Completion("{}")))(talk, passages, **arguments)
    assert (talk, passages) == before
    assert json.loads(json.dumps(result.as_dict()))["diagnostics"]
    assert "\x1b" not in "".join(result.lines())


CITED = Passage("p1", "Marie Curie discovered radium.", "Radium")
TEXT = "Marie Curie did. In 1898."
ANSWER = Answer(
    "Who discovered radium?",
    TEXT,
    (Segment(TEXT, 0, len(TEXT), CITED, {}, 0.0, 0),),
    Usage(),
    Trace("Who discovered radium?", Decoding(), (), (), None),
)


@pytest.mark.parametrize(
    ("kind", "given", "roles", "passages"),
    [
        (HallucinationDetection, None, ["user", "assistant"], ["p1"]),
        (CitationGeneration, [Passage("p2", "Radium was found by Curie.")], ["user", "assistant"], ["p2"]),
        (Answerability, None, ["user"], ["p1"]),  # the question alone goes to what judges questions
        (Uncertainty, None, ["user", "assistant"], ["p1"]),
    ],
)
def test_an_answer_is_judged_against_what_it_cites_or_what_is_given(kind, given, roles, passages):
    executor = scoring()
    kind(executor)(ANSWER, given)
    state = executor.requests[0].state
    assert [message.role for message in state.messages] == roles
    assert [passage.id for passage in state.passages] == passages


def test_a_failed_or_empty_answer_is_refused():
    with pytest.raises(UserError, match="this answer failed"):
        Uncertainty(scoring())(replace(ANSWER, error="no room"))
    with pytest.raises(UserError, match="the response is empty"):
        HallucinationDetection(scoring())(replace(ANSWER, text=""), [CITED])
