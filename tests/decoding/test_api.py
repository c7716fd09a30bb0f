"""`SelfRAG`: options, evidence, one question or many, streams, errors, and what a notebook or a terminal shows."""

import json
import re
from dataclasses import replace
from decimal import Decimal
from html import escape

import numpy as np
import pytest
from json_files import table
from refusals import refused
from scripted import ScriptedEngine
from written import EOS, LIMITS, PROMPTING, Searches, passages, run, scripted

from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.common.errors import EngineError, UserError
from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.reflection.requests import Failed
from selfrag.reflection.weights import Weights

ABSTENTION = Decoding.abstention
CITING = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": "[Relevant]Found.[Fully supported][Utility:5]</s>",
    "[Retrieval]<d2>": "[Irrelevant]Other.</s>",
    "[No Retrieval]": "Own words.</s>",
}


def rag(*questions, tree=CITING, **options):
    engine = scripted(dict.fromkeys(questions, tree))
    return SelfRAG(
        PROMPTING, engine, Searches(lambda query: passages("d1", "d2")), **options
    )


def test_options_by_name_change_the_defaults():
    never = Decoding(mode="never")
    for defaults, options, text in (
        (Decoding(), {"mode": "never"}, "Own words."),
        (never, {}, "Own words."),
        (never, {"mode": "always"}, "Found."),
        (Decoding(), {"weights": Weights(isrel=-5)}, "Other."),
    ):
        assert rag("Q", defaults=defaults).generate("Q", **options).text == text
    both = rag("Q").generate("Q", decoding=never, beam=1)
    assert both.trace.decoding == Decoding(mode="never", beam=1)


UNREAD = """
{"mode": "always", "threshold": 0.5} | threshold
{"mode": "never", "passages": 2} | passages
{"mode": "never", "shortlist": 9} | shortlist
{"mode": "always", "guardrails": ["x<0.5:retrieve"]} | guardrails
{"mode": "always", "threshold": 0.5, "guardrails": ["x<0.5:retrieve"]} | threshold
"""


@pytest.mark.parametrize("settings, name", table(UNREAD))
def test_issue_46_a_setting_that_the_mode_never_reads_is_refused(settings, name):
    # Programs, sweeps and presets set both.
    settings = json.loads(settings)
    with refused(f"^{name} has no effect with mode="):
        Decoding(**settings).check_effective(settings)


@pytest.mark.parametrize("call", ["generate", "stream", "choose"])
def test_an_unknown_option_is_refused_at_once_with_those_like_it(call):
    arguments = ("Q", ["A", "B"]) if call == "choose" else ("Q",)
    with refused(r"'treshold'; did you mean threshold"):
        getattr(rag("Q"), call)(*arguments, treshold=0.1)
    with refused("decoding='paper'"):
        getattr(rag("Q"), call)(*arguments, decoding="paper")


def test_evidence_replaces_the_search():
    model = rag("a", "b", "c")
    assert model.generate("a", evidence=[]).text == ABSTENTION
    assert (
        model.generate("a", evidence=[], without_evidence="write").text == "Own words."
    )
    assert model.generate("a", evidence=iter(passages("d1"))).text == "Found."
    answers = model.generate(("a", "b", "c"), evidence=[passages("d1"), [], None])
    assert [a.text for a in answers] == ["Found.", ABSTENTION, "Found."]
    assert isinstance(model.retriever, Searches)
    assert model.retriever.queries == ["c"]
    assert model.generate([], evidence=[]) == []


WRONG = """
"a" | "text"
"a" | passages("d1")[0]
"a" | ["text"]
["a", "b"] | passages("d1", "d2")
["a", "b"] | [passages("d1")]
["a", "b"] | 7
["a"] | [[{"id": "d1", "text": "x"}]]
"""


@pytest.mark.parametrize("question, evidence", table(WRONG))
def test_wrong_evidence_is_one_line(question, evidence):
    with refused(r"^evidence "):
        rag("a", "b").generate(eval(question), evidence=eval(evidence))


@pytest.mark.parametrize("question", [7, {"a"}, "  \n\t", "　"])
def test_what_is_no_question_is_one_line(question):
    with refused("^the question (is empty$|must be text or a)"):
        rag().generate(question)


def test_errors_stay_with_their_question():
    answers = rag("a", "c").generate(["a", "", None, "c"])
    assert [(a.text, a.error) for a in answers] == [
        ("Found.", None),
        ("", "the question is empty"),
        ("", "the question must be text, not NoneType"),
        ("Found.", None),
    ]
    assert str(answers[1]) == "error: the question is empty"


def test_a_closed_engine_says_so():
    with rag("Q") as model:
        assert model.generate("Q").text == "Found."
    with pytest.raises(EngineError, match="closed"):
        model.generate("Q")


@pytest.mark.parametrize("bad", ["\ud800", "a\udfffb"])
def test_lone_surrogates_never_make_an_answer_or_a_trace_unwritable(bad):
    def search(queries, k):
        return [[Passage(bad, f"Text of d1. {bad}", bad)] for _ in queries]

    question = f"Q {bad}"
    engine = ScriptedEngine(lambda request: Failed("no"), EOS, limits=LIMITS)
    (answer,) = SelfRAG(PROMPTING, engine, search).generate([question], mode="always")
    assert answer.error
    known = scripted(dict.fromkeys(["Q \ufffd", "Q a\ufffdb"], CITING))
    asked = [question, [{"role": "user", "content": question}]]
    fine = SelfRAG(PROMPTING, known, search).generate(asked, mode="never")
    for made in (answer, *fine):
        made.text.encode()
        made.trace.to_json().encode()
        json.dumps(made.as_dict(), ensure_ascii=False).encode()


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, kept",
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (Decimal("0.125"), 0.125),
        (10**400, None),
        (float("nan"), None),
    ],
)
def test_any_number_is_a_score_that_json_can_hold(given, kept):
    (answer,) = rag("Q").generate(
        ["Q"], evidence=[[Passage("d1", "Text of d1.", "Title of d1", given)]]
    )
    text = json.dumps(answer.as_dict(), allow_nan=False)
    assert json.loads(text)["segments"][0]["citation"]["score"] == kept


def test_two_texts_under_one_id_are_two_citations_that_stand_before_the_line_breaks():
    first = Passage("1", "First text.", "Title")
    second = Passage("1", "Second text.", "Title")
    seen = [
        f"[Retrieval]<paragraph>Title\n{one.text}</paragraph>"
        for one in (first, second)
    ]
    tree = {
        seen[0]: "[Relevant]- one\n{retrieve .9 .1 0}",
        f"- one\n{seen[1]}": "[Relevant]- two\n</s>",
    }
    answer = run(
        tree, search={"Q": [first], "Q - one": [second]}, mode="always", history="text"
    ).answer
    assert answer.citations == (first, second)
    assert answer.cited_text() == "- one [1]\n- two [2]\n"


# --- for people --------------------------------------------------------------------------------------------

EVIL = "<script>alert('x')</script>&amp;\"<img src=x onerror=y>"


def answered(title="Plain", question="Q"):
    there = f"[Retrieval]<paragraph>{title}\n{EVIL}</paragraph>"
    tree = {there: f"[Relevant]{EVIL}[Fully supported]</s>"}
    evidence = [Passage("d1", EVIL, title)]
    return run(tree, question=question, evidence=evidence, mode="always").answer


def test_html_escapes_everything():
    page = answered(title=EVIL, question=EVIL)._repr_html_()
    failed = replace(answered(), question=EVIL, error=EVIL)._repr_html_()
    known = "p b table tr th td sup small details summary"
    for shown, tags in ((page, known), (failed, "p b")):
        found = re.findall(r"<(\w+)([^>]*)>", shown)
        assert {tag for tag, _ in found} <= set(tags.split())
        assert all(re.fullmatch("( style='[^']*')?", more) for _, more in found)
    # of the question, the segment, and the passage with its title
    assert page.count(escape(EVIL)) == 4


def test_long_titles_and_texts_are_cut_and_say_so():
    answer = answered()
    cited = Passage("i" * 1_000_000, "t" * 1_000_000, "h" * 1_000_000)
    shown = replace(answer, segments=(replace(answer.segments[0], citation=cited),))
    assert len(shown._repr_html_()) < 30_000
    assert "... (980,000 more characters)" in shown._repr_html_()
    assert len(str(shown)) < 1_000
    assert "... (999,800 more characters)" in str(shown)


def test_what_others_wrote_is_no_command_to_a_terminal_or_a_page():
    hostile = answered(title="\x1b]0;title\x07\u202e", question="\x1b[2J")
    for text in (
        str(hostile),
        hostile._repr_html_(),
        str(replace(hostile, error="\x1b[2J")),
    ):
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_issue_50_an_answer_as_a_frame_of_segments():
    pytest.importorskip("pandas", reason="pandas is not installed")
    answer = rag("Q").generate("Q", max_segments=1)
    [row] = answer.frame().to_dict("records")
    (segment,) = answer.segments
    expected = {
        "text": "Found.",
        "start": 0,
        "end": 6,
        "citation": 1,
        "title": answer.citations[0].title,
        "issup": "Fully supported",
        "issup_p": max(segment.judgments["issup"].distribution),
        "score": segment.score,
        "abstained": False,
        "reason": None,
    }
    assert row | expected == row
    [row] = rag("Q").generate("Q", evidence=[]).frame().to_dict("records")
    assert row == {
        "text": ABSTENTION,
        "start": 0,
        "end": len(ABSTENTION),
        "abstained": True,
        "reason": "nothing found",
    }
    assert len(Answer.failed("Q", Decoding(), UserError("x")).frame()) == 0
