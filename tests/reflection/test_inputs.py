"""What a judge looks at: sites in the caller's own text."""

import pytest

from retrieval.passage import Passage
from selfrag.reflection.inputs import JudgeInput, Message, Site, SiteKind

STATE = JudgeInput(
    (Message("user", "Who? I ask."), Message("assistant", "Goethe. In 1808.")),
    (Passage("p", "By Goethe.", "Faust"),),
    begin=8,
)


def test_a_site_is_a_slice_of_a_message_or_a_passage():
    question = STATE.in_message(SiteKind.QUERY, 0, 0, 4)
    evidence = STATE.in_passage(SiteKind.PASSAGE, 0)
    assert question.as_dict() == {"begin": 0, "end": 4, "text": "Who?"}
    assert (str(question), str(evidence)) == (
        "query 0:4 of message 0",
        "passage 0:10 of passage 0",
    )
    assert (STATE.original(question), STATE.original(evidence)) == (
        "Who? I ask.",
        "By Goethe.",
    )
    assert STATE.holds(question)
    assert not STATE.holds(Site(SiteKind.QUERY, 0, 4, "How?", message=0))
    assert STATE.original(Site(SiteKind.PASSAGE, 0, 1, "x", passage=1)) == ""
    for fields in ({}, {"message": 0, "passage": 0}):
        with pytest.raises(ValueError, match="in a message or in a passage"):
            Site(SiteKind.QUERY, 0, 4, "Who?", **fields)


def test_what_is_judged_stands_after_its_context():
    assert (STATE.query, STATE.response) == ("Who? I ask.", "Goethe. In 1808.")
    assert (STATE.before, STATE.text) == ("Goethe. ", "In 1808.")
    alone = STATE.without_context()
    assert (alone.text, alone.begin, alone.response) == ("In 1808.", 0, "In 1808.")
    assert alone.without_context() is alone
