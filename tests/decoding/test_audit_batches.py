"""Defects that an outside audit found in batches, evidence and what is read of them: one named test each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from scripted_critics import Scripted, says
from written import PROMPTING, VOCABULARY, Searches, passages, run, scripted

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, consult, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reflectors import Moment
from selfrag.decoding.requests import Consult, Consulted, Failed, Finish, Generated
from selfrag.decoding.segments import read
from selfrag.decoding.trace import Trace
from selfrag.intrinsics.labels import RELEVANCE
from selfrag.reflection.labels import CRITIQUES
from selfrag.rendering import html

ONE = {"[Retrieval]<d1>": "[Relevant]One.[Fully supported][Utility:5]</s>"}
SECOND = Passage("1", "Second text.", "Title")
FIRST = Passage("1", "First text.", "Title")


# --- one bad request in a batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("boom"), KeyError("q"), UserError("no"), RuntimeError(), OSError("gone")])
def test_one_bad_query_fails_one_question(error: Exception) -> None:
    class Careful(Searches):
        def __call__(self, queries: Sequence[str], k: int, /) -> list[Sequence[Passage]]:
            found = super().__call__(queries, k)
            if "Q1" in queries:
                raise error
            return found

    names = [f"Q{i}" for i in range(5)]
    searches = Careful(lambda query: passages("d1"))
    decoders = [decode(name, PROMPTING, Decoding(mode="always")) for name in names]
    events = list(drive(decoders, scripted(dict.fromkeys(names, ONE)), searches))
    assert {e.index: e.answer.text for e in events if isinstance(e, Answered)} == dict.fromkeys((0, 2, 3, 4), "One.")
    assert [e.index for e in events if isinstance(e, Broken)] == [1]
    assert searches.batches == [names, *([name] for name in names)]


def test_one_bad_payload_fails_one_request_of_a_service() -> None:
    def careful(payloads: Sequence[int]) -> list[int]:
        if 2 in payloads:
            raise ZeroDivisionError("two")
        return [10 * payload for payload in payloads]

    found = consult(careful, [Consult("judge", payload) for payload in (1, 2, 3)])
    assert found == [Consulted(10), Failed("ZeroDivisionError: two"), Consulted(30)]


# --- a passage is its id and its content ---------------------------------------------------------------------------


def seen(passage: Passage) -> str:
    return f"<paragraph>{passage.title}\n{passage.text}</paragraph>"


def rank_numbered() -> Any:
    """Two segments, each after a search of its own, whose results are numbered from 1 every time."""
    first = f"[Retrieval]{seen(FIRST)}"
    tree = {
        first: "[Relevant]One.[Fully supported][Utility:5]{retrieve .9 .1 0}",
        f"One.[Retrieval]{seen(SECOND)}": "[Relevant]Two.[Fully supported][Utility:5]</s>",
    }
    return run(tree, search={"Q": [FIRST], "Q One.": [SECOND]}, mode="always", history="text").answer


def test_two_texts_under_one_id_are_two_citations() -> None:
    answer = rank_numbered()
    assert answer.citations == (FIRST, SECOND)
    assert [segment.citation for segment in answer.segments] == [FIRST, SECOND]
    assert answer.cited_text() == "One. [1] Two. [2]"
    shown = html(answer)
    assert "First text." in shown
    assert "Second text." in shown


def test_two_texts_under_one_id_in_one_search_are_both_read() -> None:
    tree = {
        f"[Retrieval]{seen(FIRST)}": ("[Relevant]One.</s>", 0.5),
        f"[Retrieval]{seen(SECOND)}": ("[Relevant]Two.</s>", 0.9),
    }
    answer = run(tree, search={"Q": [FIRST, SECOND]}, mode="always").answer
    assert answer.citations == (SECOND,)
    again = Trace.from_json(answer.trace.to_json())
    assert again == answer.trace
    assert [node.passage for node in again.nodes] == [FIRST, SECOND]


def test_two_texts_under_one_id_are_judged_apart() -> None:
    def relevance(moment: Moment) -> Any:
        return says(*((1, 0, 0) if moment.passages[0] == SECOND else (0, 0, 1)), labels=RELEVANCE)

    judge = Scripted("cr", relevance, of_passages=True)
    tree = {f"[Retrieval]{seen(SECOND)}": "Two.</s>"}
    given = {"critics": [judge]}
    answer = run(tree, search={"Q": [FIRST, SECOND]}, mode="always", gates="cr<0.5:drop", given=given).answer
    assert answer.trace.decisions[0].passages == (SECOND,)


# --- many options --------------------------------------------------------------------------------------------------


# --- scores of any kind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.float32(0.5), 0.5), (np.int64(3), 3.0), (Decimal("0.125"), 0.125), (10**400, None), (float("nan"), None)],
)
def test_any_number_is_a_score_that_json_can_hold(given: Any, kept: float | None) -> None:
    answer = run(ONE, search={"Q": [Passage("d1", "Text of d1.", "Title of d1", given)]}, mode="always").answer
    text = json.dumps(answer.as_dict(), allow_nan=False)
    assert json.loads(text)["segments"][0]["citation"]["score"] == kept


# --- reading -------------------------------------------------------------------------------------------------------


def test_a_citation_stands_before_the_line_break_that_ends_its_segment() -> None:
    tree = {
        "[Retrieval]<d1>": "[Relevant]- one\n[Fully supported][Utility:5]{retrieve 0 1 0}",
        "- one\n[No Retrieval]": "- two\n[Utility:5]</s>",
    }
    start = {"": "{~retrieve .9 .1 0}x"}
    answer = run(start | tree, "d1", history="text").answer
    assert answer.text == "- one\n- two\n"
    assert answer.cited_text() == "- one [1]\n- two\n"


@pytest.mark.parametrize("labels", CRITIQUES, ids=lambda labels: str(labels.role))
def test_a_second_eos_ends_a_segment_whose_critiques_are_forced(labels: Any) -> None:
    other_eos = 41
    ids = (*PROMPTING.codec.encode("Hi"), other_eos)
    watched = np.log(np.full((len(ids), len(VOCABULARY.watch)), 0.1, dtype=np.float32))
    generated = Generated(ids, (-0.5,) * len(ids), watched, Finish.EOS)
    reading = read(generated, VOCABULARY, branch="passage", site="here", forced={labels.role})
    assert reading.judgments[labels.role] is not None
    assert reading.text_ids == ids[:-1]
    assert reading.ended
