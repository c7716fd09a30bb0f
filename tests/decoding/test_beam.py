"""The segment beam on hand-worked trees."""

from __future__ import annotations

import pytest
from written import EOS, LIMITS, PROMPTING, Searches, model, passages, run

from retrieval.passage import Passage
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Committed, drive
from selfrag.decoding.policy import Decoding
from selfrag.engines.base import Limits
from selfrag.engines.scripted import ScriptedEngine
from selfrag.errors import DecodingError

NO_MORE = "{retrieve 0 1 0}"
GOOD, FAIR, POOR = "{isuse 0 0 0 0 1}", "{isuse 0 0 0 1 0}", "{isuse 1 0 0 0 0}"
MORE, KEEP = "{retrieve 1 0 0}", "{retrieve 0 0 1}"


# Scores with IsSup undefined: (1 + 0.5 * utility) / 1.5 * 2.5 + likelihood.
BEAM = {
    "[Retrieval]<d1>": (f"[Relevant]A.{GOOD}{MORE}", 0.9),  # 3.4
    "[Retrieval]<d2>": (f"[Relevant]B.{FAIR}{MORE}", 0.8),  # 2.8833
    "[Retrieval]<d3>": (f"[Relevant]C.{POOR}{MORE}", 0.7),  # 1.5333
    "[Retrieval]<d1>[Relevant]A.[Utility:5][Retrieval]<d4>": (f"[Relevant]a.{POOR}</s>", 0.5),  # 1.3333
    "[Retrieval]<d2>[Relevant]B.[Utility:4][Retrieval]<d5>": (f"[Relevant]b.{GOOD}</s>", 0.9),  # 3.4
}
HITS = {"Q": passages("d1", "d2", "d3"), "Q A.": passages("d4"), "Q B.": passages("d5")}


def test_the_beam_searches_again_for_each_hypothesis_with_its_last_segment() -> None:
    found = run(BEAM, search=HITS, mode="always")
    assert found.searches.batches == [["Q"], ["Q A.", "Q B."]]
    assert found.answer.usage.searches == 3
    assert found.answer.text == "B. b."
    assert [s.citation.id for s in found.answer.segments if s.citation] == ["d2", "d5"]
    assert found.statuses() == {"A.": "kept", "B.": "kept", "C.": "pruned", "a.": "finished", "b.": "finished"}
    assert [(p.id, i) for p, i in found.answer.retrieved] == [("d1", 0), ("d2", 0), ("d3", 0), ("d5", 1)]


def test_equal_queries_are_searched_once() -> None:
    """Two hypotheses whose last segments are the same ask the same."""
    tree = {
        "[Retrieval]<d1>": "[Relevant]A." + MORE,
        "[Retrieval]<d2>": "[Relevant]B." + MORE,
        "A.[Retrieval]<d1>": "[Relevant]Same." + MORE,
        "A.[Retrieval]<d2>": "[Irrelevant]No." + MORE,
        "B.[Retrieval]<d1>": "[Relevant]Same." + MORE,
        "B.[Retrieval]<d2>": "[Irrelevant]No." + MORE,
        "A.Same.[Retrieval]<d1>": "[Relevant]End.</s>",
        "A.Same.[Retrieval]<d2>": "[Relevant]End.</s>",
        "B.Same.[Retrieval]<d1>": "[Relevant]End.</s>",
        "B.Same.[Retrieval]<d2>": "[Relevant]End.</s>",
    }
    found = run(tree, "d1", "d2", mode="always", history="text")
    assert found.searches.batches == [["Q"], ["Q A.", "Q B."], ["Q Same."]]
    assert found.answer.text == "A. Same. End."
    assert found.answer.usage.searches == 4


LONG = {
    "[No Retrieval]": "12345" + NO_MORE,
    "[No Retrieval]12345[No Retrieval]": "abcde" + NO_MORE,
    "[No Retrieval]12345[No Retrieval]abcde[No Retrieval]": "vwxyz" + NO_MORE,
}


def test_passages_are_cut_and_the_cut_is_noted() -> None:
    """Of 502 characters 160 are tokenised and 5 kept; the other 342 count as 86 tokens."""
    passage = Passage("d1", "x" * 500, "T")
    found = run(
        {"[Retrieval]<paragraph>T\nxxx</paragraph>": "[Relevant]A.</s>"},
        evidence=[passage],
        mode="always",
        passage_tokens=5,
    )
    assert found.answer.trace.nodes[0].dropped_tokens == 155 + 86
    assert found.answer.citations == (passage,)


def test_a_prompt_that_fills_the_context_fails_only_its_candidate() -> None:
    small, huge = passages("d1")[0], Passage("d2", "x" * 200, "Title of d2")
    limits = Limits(max_model_len=150, vocab_size=LIMITS.vocab_size)
    found = run({"[Retrieval]<d1>": "[Relevant]A.</s>"}, evidence=[huge, small], mode="always", limits=limits)
    assert found.answer.text == "A."
    (failed,) = [n for n in found.answer.trace.nodes if n.status == "failed"]
    assert "does not fit a context of 150" in failed.finish


def test_a_question_longer_than_the_context_is_one_clear_line() -> None:
    limits = Limits(max_model_len=50, vocab_size=LIMITS.vocab_size)
    with pytest.raises(
        DecodingError, match=r"^the model could not read the question: prompt of \d+ tokens does not fit"
    ):
        run({}, "d1", question="why " * 25_000, limits=limits)


def test_a_generation_that_fills_the_context_ends_the_answer() -> None:
    first = run(LONG, mode="never", max_segments=1).engine.requests[0]
    limits = Limits(max_model_len=len(first.prompt_ids) + 4, vocab_size=LIMITS.vocab_size)
    found = run(LONG, mode="never", limits=limits)
    assert found.answer.text == "1234"
    assert found.node("1234").finish == "context"


def test_a_segment_is_committed_before_the_next_is_written() -> None:
    engine = ScriptedEngine(model({"Q": LONG}), EOS, limits=LIMITS)
    asked = [
        (type(event).__name__, len(engine.requests))
        for event in drive([decode("Q", PROMPTING, Decoding(mode="never", max_segments=3))], engine, None)
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
