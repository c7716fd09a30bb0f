"""Token budgets: of a segment, of an answer, of a passage, of the model's context."""

from __future__ import annotations

import pytest
from written import LIMITS, RESPONSE, passages, run, seen

from retrieval.passage import Passage
from selfrag.engines.base import Limits
from selfrag.errors import DecodingError

MORE = "{retrieve 0 1 0}"
LONG = {
    "[No Retrieval]": "12345" + MORE,
    "[No Retrieval]12345[No Retrieval]": "abcde" + MORE,
    "[No Retrieval]12345[No Retrieval]abcde[No Retrieval]": "vwxyz" + MORE,
}


def test_a_segment_ends_at_its_budget_and_nothing_follows() -> None:
    found = run(LONG, mode="never", segment_tokens=3)
    assert found.answer.text == "123"
    assert found.node("123").finish == "budget"
    assert found.node("123").ended
    assert found.answer.usage.requests == 1


def test_the_boundary_counts_as_a_token() -> None:
    short = {"mode": "never", "max_segments": 1}
    assert run(LONG, **short, segment_tokens=6).node("12345").finish == "stop"
    assert run(LONG, **short, segment_tokens=5).node("12345").finish == "budget"


@pytest.mark.parametrize(
    ("budget", "text", "asked"),
    [(6, "12345", [6]), (8, "12345 ab", [8, 2]), (12, "12345 abcde", [12, 6]), (13, "12345 abcde v", [13, 7, 1])],
)
def test_an_answer_never_spends_more_than_its_budget(budget: int, text: str, asked: list[int]) -> None:
    found = run(LONG, mode="never", answer_tokens=budget, max_segments=3)
    assert found.answer.text == text
    assert [request.max_tokens for request in found.engine.requests] == asked
    assert found.answer.usage.generated_tokens <= budget
    assert found.answer.trace.nodes[-1].ended


def test_a_spent_answer_is_complete_for_rescoring() -> None:
    answer = run(LONG, mode="never", answer_tokens=6).answer
    assert answer.rescore(answer.trace.decoding.weights).exact


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


def test_usage_counts_what_was_asked() -> None:
    found = run(LONG, mode="never", max_segments=2)
    usage = found.answer.usage
    assert usage.requests == 2
    assert usage.prompt_tokens == sum(len(request.prompt_ids) for request in found.engine.requests)
    assert usage.generated_tokens == 12
    assert (usage.cached_tokens, usage.searches) == (0, 0)
    assert usage.seconds > 0
    assert seen(found.engine.requests[0].prompt_ids) == f"### Instruction:\nQ\n\n{RESPONSE}[No Retrieval]"
