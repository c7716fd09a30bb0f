"""Nothing found, nothing invented: abstentions and their reasons, refusals that cite nothing, cut segments."""

import json
from dataclasses import replace

import pytest
from json_files import table
from scripted_judges import Scripted, says
from written import PROMPTING, REFUSING, Searches, passages, run, scripted

from selfrag.api import SelfRAG
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.judges.tokens import TokenJudge
from selfrag.reflection.intrinsic_labels import ANSWERABLE
from selfrag.reflection.labels import ISREL
from selfrag.reflection.weights import Weights

ABSTENTION = Decoding.abstention
CITING = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": "[Relevant]Found.[Fully supported][Utility:5]</s>",
    "[No Retrieval]": "Own words.</s>",
}
GOES_ON = CITING | {
    "[Retrieval]<d1>": "[Relevant]Found.[Fully supported]{retrieve .9 .1 0}"
}
"""A second segment is searched for."""
AGAIN = "[Retrieval]<d1>[Relevant]Found.[Fully supported][Retrieval]<d1>"


def rag(tree=CITING, found=lambda query: (), **options):
    return SelfRAG(
        PROMPTING, scripted({"Q": tree, "R": tree}), Searches(found), **options
    )


def told(answer):
    names = "text abstained reason without_evidence citations"
    return tuple(getattr(answer, name) for name in names.split())


ABSTAINED = (ABSTENTION, True, "nothing found", False, ())
WRITTEN = ("Own words.", False, "nothing found", True, ())


@pytest.mark.parametrize("mode", ["adaptive", "always"])
@pytest.mark.parametrize("evidence", [None, [], [replace(passages("d1")[0], text=" ")]])
@pytest.mark.parametrize("question", ["Q", [{"role": "user", "content": "Q"}]])
@pytest.mark.parametrize(
    "setting, wanted", [("abstain", ABSTAINED), ("write", WRITTEN)]
)
def test_defect_7_nothing_found_is_said_and_nothing_is_invented(
    mode, evidence, question, setting, wanted
):
    """Audit A1: a search, or evidence of the caller, that holds nothing; conversations do not search in its place."""
    given = {"evidence": evidence, "mode": mode, "without_evidence": setting}
    answer = rag().generate(question, **given)
    assert answer.usage.searches == (evidence is None)
    assert Trace.from_json(answer.trace.to_json()) == answer.trace
    kept = json.loads(json.dumps(answer.as_dict()))
    assert (kept["abstained"], kept["reason"], kept["without_evidence"]) == wanted[1:4]
    again = answer.rescore(Weights(3, 0, 0))
    assert again.exact
    *segments, streamed = rag().stream(question, **given)
    assert tuple(segments) == answer.segments
    for one in (answer, again, streamed):
        assert told(one) == wanted


def test_what_the_model_or_the_mode_writes_by_itself_stays():
    for answer in (
        rag().generate("Q", mode="never"),
        rag().generate("Q", evidence=[], threshold=0.95),
    ):
        assert told(answer) == ("Own words.", False, None, False, ())


def test_the_published_code_has_no_abstention():
    asking = CITING | {"": "{retrieve .9 .1 0}</s>"}  # it reads more than the one token
    assert told(run(asking, evidence=(), policy=Decoding.official()).answer) == WRITTEN


@pytest.mark.parametrize("setting", ["abstain", "write"])
def test_an_answer_ends_where_a_later_search_finds_nothing(setting):
    """Unless the model may go on by itself."""
    more = "[Retrieval]<d1>[Relevant]Found.[Fully supported][No Retrieval]"
    answer = run(
        GOES_ON | {more: "More.</s>"},
        search=lambda query: passages("d1") if query == "Q" else (),
        without_evidence=setting,
    ).answer
    ends = setting == "abstain"
    assert answer.text == ("Found." if ends else "Found. More.")
    reason = "the search for segment 2: nothing found" if ends else None
    assert (answer.partial, answer.finish) == (reason, "stop")
    assert (answer.abstained, answer.without_evidence) == (False, not ends)
    assert answer.segments[-1].citation == (passages("d1")[0] if ends else None)
    rescored = answer.rescore(Weights(0, 1, 0))
    assert (rescored.text, rescored.exact) == (answer.text, True)
    assert Trace.from_json(answer.trace.to_json()) == answer.trace


def test_multiple_choice_abstains():
    answer = run(CITING, evidence=(), choices=["A", "B"]).answer
    for one in (answer, answer.rescore(Weights(2, 0, 0))):
        assert (told(one), one.exact) == (ABSTAINED, True)


@pytest.mark.parametrize(
    "effect, reason", [("drop", "every passage left out"), ("abstain", "guardrail")]
)
def test_guardrails_that_leave_nothing(effect, reason):
    gate = Scripted(
        "g",
        lambda state: says(0.1, 0.9, labels=ANSWERABLE),
        labels=ANSWERABLE,
        asks=True,
    )
    critics = {"given": {"judges": [gate]}}
    answer = run(CITING, "d1", guardrails=f"g<0.5:{effect}", **critics).answer
    assert told(answer) == (ABSTENTION, True, reason, False, ())
    assert Trace.from_json(answer.trace.to_json()).reason == reason
    written = run(CITING, "d1", guardrails="g<0.5:write", **critics).answer
    # the guardrail asks for it
    assert told(written) == (
        "Own words.",
        False,
        None,
        False,
        (),
    )


@pytest.mark.parametrize(
    "rule",
    [
        {"require": {"issup": "No support / Contradictory"}},
        {"forbid": {"isrel": "Relevant"}},
    ],
)
@pytest.mark.parametrize("choices", [None, ["A", "B"]])
def test_a_constraint_that_no_candidate_meets_gives_the_abstention(rule, choices):
    """Audit A2: an empty text with `abstained` False."""
    tree = CITING
    if choices:
        there = "[Retrieval]<d1>"
        tree = tree | {there: "{isrel .9 .1}x", f"{there}[Relevant]": "A"}
        for text in choices:
            tree[f"{there}[Relevant]{text}"] = "{issup .9 .1 0}x"
            tree[f"{there}[Relevant]{text}[Fully supported]"] = "x"
    answer = run(tree, "d1", choices=choices, abstention="No answer.", **rule).answer
    assert told(answer) == ("No answer.", True, "constraints not met", False, ())
    assert answer.trace.nodes
    assert Trace.from_json(answer.trace.to_json()) == answer.trace
    assert answer.rescore(Weights(3, 0, 0)).text == "No answer."


def test_a_trace_of_before_is_read_as_it_was_decoded():
    found = rag().generate("Q", without_evidence="write").trace
    old = found.as_dict()
    assert "without_evidence" not in old["decoding"]
    for decision in old["decisions"]:
        decision.pop("cause", None)
    again = Trace.from_json(json.dumps(old))
    assert again.decoding.without_evidence == "write"
    assert replace(again, decisions=found.decisions) == found


# --- refusals cite nothing; texts are not glued; a cut is told ------------------------------------------------------


def test_a_refusal_carries_no_citation_and_the_trace_keeps_the_passage():
    """`I don't know. [1]`, audit 13."""
    tree = GOES_ON | {AGAIN: "[Relevant]The text does not say more.</s>"}
    answer = run(tree, "d1").answer
    assert answer.cited_text() == "Found. [1] The text does not say more."
    path = answer.trace.path(answer.trace.best)
    assert [node.passage for node in path] == [*passages("d1")] * 2
    refused = "[Relevant]I don't know.[Utility:5]</s>"
    alone = run(CITING | {"[Retrieval]<d1>": refused}, "d1").answer
    assert told(alone) == ("I don't know.", True, "the model refused", False, ())


@pytest.mark.parametrize(
    "tree, text, abstained",
    [
        ({"[Retrieval]<d1>": "[Relevant]I don't know.</s>"}, "I don't know.", True),
        # neither sentence of these refuses alone, or only one does
        (
            {
                "[Retrieval]<d1>": "[Relevant]I'm sorry.{retrieve .9 .1 0}",
                "[Retrieval]<d1>[Relevant]I'm sorry.[Retrieval]<d1>": "[Relevant]The text does not say.</s>",
            },
            "I'm sorry. The text does not say.",
            True,
        ),
        (
            GOES_ON | {AGAIN: "[Relevant]I don't know more.</s>"},
            "Found. I don't know more.",
            False,
        ),
        ({"[Retrieval]<d1>": "[Relevant]No entry.</s>"}, "No entry.", True),
    ],
)
def test_the_models_own_refusal_is_an_abstention(tree, text, abstained):
    """In Python, its dictionary, the trace of now and of before, the page's record and what people read."""
    answer = run(CITING | tree, "d1", abstention="No entry.").answer
    reason = "the model refused" if abstained else None
    assert told(answer)[:4] == (text, abstained, reason, False)
    kept, record = answer.as_dict(), answer.trace.as_dict()
    assert (kept["abstained"], kept["reason"]) == (abstained, reason)
    assert record.pop("reason", None) == reason
    assert record["nodes"][record["best"]].get("abstains", False) == abstained
    for node in record["nodes"]:
        node.pop("abstains", None)
    again = Trace.from_json(json.dumps(record))
    assert (again, again.abstained, again.reason) == (answer.trace, abstained, reason)
    for shown in (str(answer), answer._repr_html_()):
        assert ("the model refused" in shown) == abstained


@pytest.mark.parametrize("relevance, left", [(0.6, False), (0.7, True)])
def test_strict_leaves_out_passages_of_little_relevance(relevance, left):
    judgment = f"{{isrel {relevance} {1 - relevance}}}"
    tree = CITING | {"[Retrieval]<d1>": f"{judgment}Found.[Fully supported]</s>"}
    judges = {"judges": [TokenJudge(PROMPTING, ISREL)]}
    answer = run(tree, "d1", policy=Decoding.strict(), given=judges).answer
    dropped = (ABSTENTION, True, "every passage left out")
    assert told(answer)[:3] == (("Found.", False, None) if left else dropped)


def test_rescoring_away_from_a_refusal_is_told():
    answer = run(REFUSING, "d1", "d2", weights=Weights(9, 0, 0)).answer
    assert told(answer)[:3] == ("I don't know.", True, "the model refused")
    other = answer.rescore(Weights(0, 9, 0))
    assert told(other)[:3] == ("Found.", False, None)
    assert told(other.rescore(Weights(9, 0, 0)))[:3] == told(answer)[:3]


def test_a_refusal_without_evidence_says_both():
    tree = CITING | {"[No Retrieval]": "I don't know.</s>"}
    answer = run(tree, evidence=(), without_evidence="write").answer
    assert told(answer) == ("I don't know.", True, "the model refused", True, ())


def test_an_option_is_no_refusal_whatever_it_says():
    tree = {"": "{~retrieve .1 .9 0}x", "[No Retrieval]": "A"}
    tree |= {"[No Retrieval]A": "x", "[No Retrieval]B": "x"}
    answer = run(tree, choices=["A", "B"], abstention="A").answer
    assert (answer.text, answer.abstained, answer.reason) == ("A", False, None)


GLUED = """
It is metric system.[Fully supported][Utility:5]I don't know. | It is metric system. I don't know.
In 1867[Fully supported]She won. | In 1867 She won.
One.[Utility:5] Two. | One. Two.
One. [Utility:5]Two. | One. Two.
One[Utility:5], two | One, two
(one)[Utility:5](two) | (one) (two)
He said "[Utility:5]no".[Fully supported]"Yes" | He said "no". "Yes"
80.[Utility:5]5 degrees | 80.5 degrees
well-[Utility:5]known | well-known
temp[Utility:5]erature | temperature
\u7eff\u8336\u3002[Utility:5]\u7ea2\u8336\u3002 | \u7eff\u8336\u3002\u7ea2\u8336\u3002
\u0e0a\u0e32[Utility:5]\u0e0a\u0e32 | \u0e0a\u0e32\u0e0a\u0e32
"""


@pytest.mark.parametrize("written, text", table(GLUED))
def test_texts_on_both_sides_of_a_control_token_are_not_glued(written, text):
    """Audit A6: `system.I don't know.`; token ids and offsets stay true."""
    answer = run(CITING | {"[Retrieval]<d1>": f"[Relevant]{written}</s>"}, "d1").answer
    assert answer.text == text
    (segment,), (node,) = answer.segments, answer.trace.nodes
    assert answer.text[segment.start : segment.end] == segment.text
    assert PROMPTING.text(node.token_ids) == text
    ids = node.text_ids
    assert "".join(text.split()) == "".join(PROMPTING.codec.decode(ids).split())


CUTS = """
{} | They can sleep for hours. | stop
{"segment_tokens": 9} | They can | length
{"answer_tokens": 9} | They can | length
{"answer_tokens": 1, "segment_tokens": 1} |  | length
{"max_segments": 1} | They can sleep for hours. | stop
"""


@pytest.mark.parametrize("options, text, finish", table(CUTS))
def test_defect_8_a_segment_that_was_cut_says_so(options, text, finish):
    """Field audit S1: in Python, in the trace and in JSON."""
    written = "[Relevant]They can sleep for hours. [Fully supported][Utility:5]</s>"
    tree = CITING | {"[Retrieval]<d1>": written}
    answer = run(tree, "d1", **json.loads(options)).answer
    assert told(answer)[:3] == (text, False, None)
    assert [segment.finish for segment in answer.segments] == [finish] * bool(text)
    read = Trace.from_json(answer.trace.to_json())
    for shown in (answer, read, answer.rescore(Weights(0, 1, 0))):
        assert shown.finish == finish
    assert answer.as_dict()["finish"] == finish


@pytest.mark.parametrize("tokens, finish", [(9, "length"), (1000, "stop")])
def test_an_answer_that_had_no_token_left_to_go_on_was_cut(tokens, finish):
    """Its last segment is whole: `stop` of the segment, `length` of the answer."""
    tree = GOES_ON | {AGAIN: "[Relevant]More.</s>"}
    answer = run(tree, "d1", answer_tokens=tokens).answer
    assert (answer.finish, answer.segments[0].finish) == (finish, "stop")


def test_a_model_that_answers_in_english_only_says_so():
    """Audit A5."""
    asked = french, _ = "Qui a trouvé le radium ?", "Who found radium?"
    engine = scripted(dict.fromkeys(asked, CITING))
    search = Searches(lambda query: passages("d1"))
    model = SelfRAG(PROMPTING, engine, search, english_only=True)
    note = "this model answers in English only; the question looks like French"
    assert [answer.note for answer in model.generate(asked)] == [note, None]
    *_, streamed = model.stream(french)
    assert streamed.note == model.generate(french).note == note
    assert replace(model, english_only=False).generate(french).note is None
