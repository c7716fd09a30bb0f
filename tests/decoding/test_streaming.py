"""Commit events: a segment is told as soon as every hypothesis that can still win begins with it."""

from __future__ import annotations

from written import EOS, LIMITS, PROMPTING, Searches, model, passages, run

from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Committed, drive
from selfrag.decoding.policy import Decoding
from selfrag.engines.scripted import ScriptedEngine

MORE = "{retrieve 0 1 0}"
LINE = {
    "[No Retrieval]": "One." + MORE,
    "[No Retrieval]One.[No Retrieval]": "Two." + MORE,
    "[No Retrieval]One.[No Retrieval]Two.[No Retrieval]": "Three.</s>",
}


def test_a_segment_is_committed_before_the_next_is_written() -> None:
    engine = ScriptedEngine(model({"Q": LINE}), EOS, limits=LIMITS)
    asked = [
        (type(event).__name__, len(engine.requests))
        for event in drive([decode("Q", PROMPTING, Decoding(mode="never"))], engine, None)
    ]
    assert asked == [("Committed", 1), ("Committed", 2), ("Committed", 3), ("Answered", 3)]


def test_nothing_is_committed_while_hypotheses_disagree() -> None:
    tree = {
        "[Retrieval]<d1>": ("[Relevant]A.{retrieve 1 0 0}", 0.9),
        "[Retrieval]<d2>": ("[Relevant]B.{retrieve 1 0 0}", 0.8),
        "A.[Retrieval]<d1>": ("[Irrelevant]a.</s>", 0.1),
        "A.[Retrieval]<d2>": ("[Irrelevant]aa.</s>", 0.1),
        "B.[Retrieval]<d1>": ("[Relevant]b.</s>", 0.9),
        "B.[Retrieval]<d2>": ("[Relevant]bb.</s>", 0.8),
    }
    engine = ScriptedEngine(model({"Q": tree}), EOS, limits=LIMITS)
    decoder = decode("Q", PROMPTING, Decoding(mode="always", history="text"))
    events = [(e, len(engine.requests)) for e in drive([decoder], engine, Searches(lambda query: passages("d1", "d2")))]
    assert [(type(e).__name__, asked) for e, asked in events] == [("Committed", 6), ("Committed", 6), ("Answered", 6)]
    assert [e.segment.text for e, _ in events if isinstance(e, Committed)] == ["B.", "b."]


def test_a_finished_hypothesis_that_cannot_win_holds_no_commit_back() -> None:
    """Only the best of the finished ones matters: the rest can never become the answer."""
    tree = {
        "[Retrieval]<d1>": ("[Relevant]A.</s>", 0.9),
        "[Retrieval]<d2>": ("[Relevant]B.</s>", 0.8),
    }
    found = run(tree, "d1", "d2", mode="always")
    assert [s.text for s in found.commits] == ["A."]
