"""Rows of a critic from neighbouring annotations: what becomes a row, and what may not."""

from dataclasses import replace

import pytest

from critic.cases import Case, parse_labelled
from make_critic_rows import checked_claim, fresh, marked_reply, shown_passage
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.training.rows import Evidence, Row, Text, Token

CLAIM = {
    "id": "c1",
    "dataset": "fool_me_twice",
    "kind": "fact_check",
    "instruction": "Is the following statement correct or not?\n\n## Input:\n\nThe Suez Canal links two oceans.",
    "output": "false",
    "gold_passages": [{"title": "Suez Canal", "text": "The Suez Canal is an artificial sea-level waterway in Egypt."}],
}
REPLY = {
    "id": "r1",
    "dataset": "faithdial_audit",
    "conversation": [{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": "It is so. Perhaps."}],
    "documents": [{"doc_id": "d", "title": "", "text": "So it is."}],
    "sentences": [
        {"begin": 0, "end": 9, "text": "It is so.", "label": "faithful"},
        {"begin": 10, "end": 18, "text": "Perhaps.", "label": "NA"},
    ],
}


def test_a_false_claim_is_not_supported_by_its_evidence():
    row = checked_claim(CLAIM)
    assert row.label == parse_labelled(row.as_dict()).label == "No support / Contradictory"
    assert row.case.output == "The Suez Canal links two oceans."
    assert row.case.instruction == "Write one factual sentence about Suez Canal."
    for change in ({"kind": "short_qa"}, {"gold_passages": []}, {"gold_passages": CLAIM["gold_passages"] * 2}):
        assert checked_claim({**CLAIM, **change}) is None


def test_marked_sentences_become_rows_and_unmarked_do_not():
    [row] = marked_reply(REPLY)
    assert (row.label, row.case.output, row.case.preceding) == ("Fully supported", "It is so.", "")
    second = {**REPLY["sentences"][1], "label": "partial"}
    assert [r.case.preceding for r in marked_reply({**REPLY, "sentences": [second]})] == ["It is so."]
    wrong = [{**REPLY["sentences"][0], "label": "unfaithful"}]
    assert len(list(marked_reply({**REPLY, "sentences": wrong}))) == 1
    assert not list(marked_reply({**REPLY, "dataset": "begin", "sentences": wrong}))  # its class mixes two labels
    assert not list(marked_reply({**REPLY, "conversation": []}))


def test_a_record_of_another_schema_is_one_line():
    for key in ("id", "dataset", "conversation", "documents", "sentences"):
        with pytest.raises(UserError, match=f"{key!r}"):
            list(marked_reply({**REPLY, key: 7.5}))
    for change in ({"output": None}, {"gold_passages": [{"title": "T"}]}):
        with pytest.raises(UserError, match=r"must be|no 'text'"):
            checked_claim({**CLAIM, **change})


def test_known_rows_and_rows_of_held_out_text_are_left_out():
    row = checked_claim(CLAIM)
    assert fresh([row, row], [], [])[0] == [row]
    assert fresh([row], [row], [])[1] == {"known": 1}
    words = "one two three four five six seven eight nine ten eleven twelve"
    long = replace(row, case=replace(row.case, output=f"First {words} last."))
    held_out = replace(row, case=replace(row.case, output=f"Other {words} words.", evidence=None))
    assert fresh([long], [], [held_out])[1] == {"shares text with held-out rows": 1}
    shorter = replace(held_out, case=replace(held_out.case, output="One two three."))
    assert fresh([long], [], [shorter])[0] == [long]


def test_the_passage_of_a_generators_row_is_judged_as_its_token_says():
    passage = Passage("p", "Havana is in Cuba.", "Havana")
    parts = (Token("[Retrieval]"), Evidence(passage), Token("[Irrelevant]"), Text("Rome"), Token("[Utility:1]"))
    row = Row("r", "squad2/unanswerable", "Where is Rome?", parts)
    found = shown_passage(row)
    assert (found.label, found.label_source, found.rule) == ("Irrelevant", "derived", "unanswerable")
    assert found.case == Case("IsRel", "Where is Rome?", evidence=passage)
    assert shown_passage(replace(row, source="squad2/answer_removed")) is None  # an altered passage
    assert shown_passage(replace(row, target=parts[:1] + parts[3:])) is None  # no passage
    assert shown_passage(replace(row, target=(*parts[:2], *parts[3:]))) is None  # not judged
    assert shown_passage(replace(row, target=(*parts, Evidence(passage)))) is None  # which of the two?
    rows = [found, shown_passage(replace(row, instruction="When?"))]  # another question is another row
    assert fresh([*rows, *rows], [], [])[0] == rows
