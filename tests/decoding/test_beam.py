"""The segment beam on hand-worked trees."""

from __future__ import annotations

import pytest
from written import passages, run

GOOD, FAIR, POOR = "{isuse 0 0 0 0 1}", "{isuse 0 0 0 1 0}", "{isuse 1 0 0 0 0}"
MORE, KEEP = "{retrieve 1 0 0}", "{retrieve 0 0 1}"


def test_short_form_takes_the_best_passage() -> None:
    tree = {
        "[Retrieval]<d1>": ("{isrel .2 .8}No.{issup .1 .1 .8}{isuse 0 0 0 0 1}</s>", 0.9),
        "[Retrieval]<d2>": ("{isrel .9 .1}Yes.{issup .8 .1 .1}{isuse 0 0 0 0 1}</s>", 0.5),
    }
    found = run(tree, "d1", "d2", mode="always", max_segments=1)
    assert found.answer.text == "Yes."
    assert [p.id for p in found.answer.citations] == ["d2"]
    assert found.node("No.").score == pytest.approx(0.9 + 0.2 + 0.15 + 0.5, abs=1e-6)
    assert found.node("Yes.").score == pytest.approx(0.5 + 0.9 + 0.85 + 0.5, abs=1e-6)
    assert [(p.id, i) for p, i in found.answer.retrieved] == [("d1", 0), ("d2", 0)]


def test_a_segment_ends_at_the_next_retrieve_token() -> None:
    found = run(
        {"[No Retrieval]": "One.[Retrieval]<paragraph>made up</paragraph>Two.</s>"}, mode="never", max_segments=1
    )
    assert found.answer.text == "One."
    assert found.node("One.").finish == "stop"


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


@pytest.mark.parametrize(
    ("accumulate", "path_b"),
    [("mean", (2.8833 + 3.4) / 2), ("sum", 2.8833 + 3.4), ("product", 2.8833 * 3.4)],
)
def test_accumulate_modes(accumulate: str, path_b: float) -> None:
    found = run(BEAM, search=HITS, mode="always", accumulate=accumulate)
    assert found.node("A.").score == pytest.approx(3.4, abs=1e-4)
    assert found.node("b.").path_score == pytest.approx(path_b, abs=1e-3)


def test_beam_of_one_is_greedy_over_segments() -> None:
    found = run(BEAM, search=HITS, mode="always", beam=1)
    assert found.answer.text == "A. a."
    assert found.searches.queries == ["Q", "Q A."]


def test_a_finished_hypothesis_is_kept_outside_the_beam_too() -> None:
    """B = 1: what ended ranks second, but what continues ends up below it."""
    tree = {
        "[Retrieval]<d1>": (f"[Relevant]Go.{GOOD}{MORE}", 0.9),  # 3.4
        "[Retrieval]<d2>": (f"[Relevant]Done.{GOOD}</s>", 0.8),  # 3.3
        "[Retrieval]<d1>[Relevant]Go.[Utility:5][Retrieval]<d1>": (f"[Relevant]On.{POOR}</s>", 0.5),  # mean 2.3667
        "[Retrieval]<d1>[Relevant]Go.[Utility:5][Retrieval]<d2>": (f"[Relevant]Off.{POOR}</s>", 0.4),
    }
    found = run(tree, "d1", "d2", mode="always", beam=1)
    assert found.answer.text == "Done."
    assert found.answer.rescore() == found.answer


def test_an_end_is_not_merged_into_a_path_that_goes_on() -> None:
    tree = {
        "[Retrieval]<d1>": ("[Relevant]Same." + MORE, 0.9),
        "[Retrieval]<d2>": ("[Relevant]Same.</s>", 0.8),
        "[Retrieval]<d1>[Relevant]Same.[Retrieval]<d1>": ("[Irrelevant]Worse.</s>", 0.1),
        "[Retrieval]<d1>[Relevant]Same.[Retrieval]<d2>": ("[Irrelevant]Worse.</s>", 0.1),
    }
    found = run(tree, "d1", "d2", mode="always")
    assert found.answer.text == "Same."
    assert [p.id for p in found.answer.citations] == ["d2"]


def test_the_end_of_the_answer_is_scored_as_what_it_ends() -> None:
    """A continuation that is only EOS says nothing, so the hypothesis keeps the score it had."""
    tree = {
        "[Retrieval]<d1>": (f"[Relevant]Fine.{GOOD}{MORE}", 0.9),  # 3.4, then it simply ends
        "[Retrieval]<d2>": (f"[Relevant]Meh.{FAIR}{MORE}", 0.8),  # 2.8833, mean with the next 2.2083
        "[Retrieval]<d1>[Relevant]Fine.[Utility:5][Retrieval]<d1>": "</s>",
        "[Retrieval]<d1>[Relevant]Fine.[Utility:5][Retrieval]<d2>": "[Relevant]</s>",
        "[Retrieval]<d2>[Relevant]Meh.[Utility:4][Retrieval]<d1>": (f"[Relevant]So.{POOR}</s>", 0.7),
        "[Retrieval]<d2>[Relevant]Meh.[Utility:4][Retrieval]<d2>": (f"[Relevant]Oh.{POOR}</s>", 0.7),
    }
    found = run(tree, "d1", "d2", mode="always")
    assert found.answer.text == "Fine."
    assert len(found.answer.segments) == 1
    assert {i for _, i in found.answer.retrieved} == {0}
    for accumulate in ("mean", "sum", "product"):
        again = run(tree, "d1", "d2", mode="always", accumulate=accumulate)
        (end,) = [n for n in again.answer.trace.nodes if n.depth == 2 and not n.text and n.status == "finished"]
        assert end.path_score == again.node("Fine.").path_score


def test_the_no_retrieval_branch_competes_with_the_passages() -> None:
    tree = {
        "[Retrieval]<d1>": ("[Irrelevant]Guess.{isuse 0 0 1 0 0}</s>", 0.9),  # 0 + 0.9
        "[No Retrieval]": ("Known.{isuse 0 0 0 0 1}</s>", 0.9),  # 2.5 + 0.9
    }
    assert run(tree, "d1", mode="always").answer.text == "Guess."
    found = run(tree, "d1", mode="always", no_retrieval_branch=True)
    assert found.answer.text == "Known."
    assert found.answer.segments[0].citation is None
    assert found.node("Known.").branch == "none"


def test_an_irrelevant_passage_is_not_cited() -> None:
    found = run({"[Retrieval]<d1>": "[Irrelevant]Guess.</s>"}, "d1", mode="always")
    assert found.answer.segments[0].citation is None
    assert found.answer.citations == ()


CONTINUE = {
    "": "{~retrieve 1 0 0}x",
    "[Retrieval]<d1>": f"{{isrel .4 .6}}Bad.{GOOD}{MORE}",
    "[Retrieval]<d3>": f"[Relevant]One.{GOOD}{KEEP}",
    "[Retrieval]<d3>[Relevant]One.[Utility:5][Continue to Use Evidence]": "Two.[Fully supported]{retrieve 0 1 0}",
    "[Retrieval]<d3>[Relevant]One.[Utility:5][Continue to Use Evidence]Two.[Fully supported][No Retrieval]": "Three."
    + KEEP,
    "[Retrieval]<d3>[Relevant]One.[Utility:5][Continue to Use Evidence]Two.[Fully supported][No Retrieval]Three."
    "[Continue to Use Evidence]": "Four.</s>",
}


def test_continue_keeps_the_passage_without_another_search() -> None:
    found = run(CONTINUE, "d1", "d3", beam=1)
    assert found.answer.text == "One. Two. Three. Four."
    assert found.searches.queries == ["Q"]
    assert [s.citation.id if s.citation else None for s in found.answer.segments] == ["d3", "d3", None, "d3"]
    assert [d.action for d in found.answer.trace.decisions] == ["retrieve", "continue", "write", "continue"]
    assert [n.branch for n in found.answer.trace.path(found.answer.trace.best)] == [
        "passage",
        "continue",
        "none",
        "continue",
    ]


def test_continue_is_judged_for_support_but_not_for_relevance() -> None:
    two = run(CONTINUE, "d1", "d3", beam=1).node("Two.")
    assert two.judgments["isrel"] is None
    assert two.judgments["issup"].label == "Fully supported"
    assert two.judgments["issup"].evidence == "d3"


def test_continue_with_text_history_shows_the_passage_again() -> None:
    tree = {
        "[Retrieval]<d3>": f"[Relevant]One.{GOOD}{KEEP}",
        "": "{~retrieve 1 0 0}x",
        "One.[Retrieval]<d3>": "[Relevant]Two.</s>",
    }
    found = run(tree, "d3", history="text")
    assert found.answer.text == "One. Two."
    assert found.searches.queries == ["Q"]
    assert found.node("Two.").branch == "continue"
    assert [p.id for p in found.answer.citations] == ["d3"]


def test_continuing_with_an_irrelevant_passage_does_not_cite_it() -> None:
    tree = {
        "": "{~retrieve 1 0 0}x",
        "[Retrieval]<d1>": f"[Irrelevant]One.{KEEP}",
        "[Retrieval]<d1>[Irrelevant]One.[Continue to Use Evidence]": "Two.</s>",
    }
    assert run(tree, "d1").answer.citations == ()


def test_each_hypothesis_carries_its_own_history() -> None:
    prompts = run(BEAM, search=HITS, mode="always").prompts
    assert "[Retrieval]<d1>[Relevant]A.[Utility:5][Retrieval]<d4>" in prompts
    assert "[Retrieval]<d2>[Relevant]B.[Utility:4][Retrieval]<d5>" in prompts


def test_text_history_drops_passages_and_critiques() -> None:
    tree = {
        "[Retrieval]<d1>": f"[Relevant]A.[Fully supported]{GOOD}{MORE}",
        "A.[Retrieval]<d2>": f"[Relevant]B.{MORE}",
        "A.B.[Retrieval]<d3>": "[Relevant]C.</s>",
    }
    search = {"Q": passages("d1"), "Q A.": passages("d2"), "Q B.": passages("d3")}
    found = run(tree, search=search, mode="always", history="text")
    assert found.answer.text == "A. B. C."
    assert found.prompts == ["[Retrieval]<d1>", "A.[Retrieval]<d2>", "A.B.[Retrieval]<d3>"]


def test_a_repeated_segment_ends_the_path_before_it() -> None:
    tree = {
        "[No Retrieval]": "Same.{retrieve 0 1 0}",
        "[No Retrieval]Same.[No Retrieval]": "Same.{retrieve 0 1 0}",
    }
    found = run(tree, mode="never")
    assert found.answer.text == "Same."
    assert [str(n.status) for n in found.answer.trace.nodes] == ["finished", "duplicate"]


def test_equal_candidates_are_merged_and_free_a_place_in_the_beam() -> None:
    tree = {
        "[Retrieval]<d1>": ("[Relevant]Same.</s>", 0.8),
        "[Retrieval]<d2>": ("[Relevant]Same.</s>", 0.9),
        "[Retrieval]<d3>": ("[Relevant]Other.</s>", 0.1),
    }
    found = run(tree, "d1", "d2", "d3", mode="always", beam=2)
    assert [str(n.status) for n in found.answer.trace.nodes] == ["merged", "finished", "finished"]
    assert [p.id for p in found.answer.citations] == ["d2"]


def test_ties_go_to_the_earlier_passage() -> None:
    tree = {f"[Retrieval]<d{i}>": f"[Relevant]From {i}.</s>" for i in (1, 2, 3)}
    assert run(tree, "d2", "d1", "d3", mode="always").answer.text == "From 2."


def test_ties_among_finished_hypotheses_go_to_the_earlier_candidate_whenever_it_ended() -> None:
    """A turns out to have no continuation only after B has ended; rescoring must agree."""
    tree = {
        "[Retrieval]<d1>": "[Relevant]A." + MORE,
        "[Retrieval]<d2>": "[Relevant]B.</s>",
        "[Retrieval]<d1>[Relevant]A.[Retrieval]<d1>": "[Relevant]A.</s>",
        "[Retrieval]<d1>[Relevant]A.[Retrieval]<d2>": "[Relevant]A.</s>",
    }
    found = run(tree, "d1", "d2", mode="always")
    assert found.answer.text == "A."
    assert found.answer.rescore() == found.answer


def test_an_empty_segment_is_no_candidate() -> None:
    tree = {
        "[Retrieval]<d1>": ("[Relevant][Fully supported][Utility:5]</s>", 0.99),
        "[Retrieval]<d2>": (" \n</s>", 0.99),
        "[Retrieval]<d3>": ("{isrel .1 .9}Words.</s>", 0.1),
    }
    found = run(tree, "d1", "d2", "d3", mode="always")
    assert found.answer.text == "Words."
    assert sorted(found.statuses().values()) == ["empty", "empty", "finished"]


def test_nothing_but_an_end_is_an_empty_answer_not_an_error() -> None:
    found = run({"[No Retrieval]": "</s>"}, mode="never")
    assert (found.answer.text, found.answer.segments, found.answer.error) == ("", (), None)
    assert found.answer.trace.best is None


def test_white_space_is_kept_inside_and_joined_outside() -> None:
    tree = {
        "[No Retrieval]": "  One:{retrieve 0 1 0}",
        "[No Retrieval]  One:[No Retrieval]": "\n- two  {retrieve 0 1 0}",
        "[No Retrieval]  One:[No Retrieval]\n- two  [No Retrieval]": ", three{retrieve 0 1 0}",
        "[No Retrieval]  One:[No Retrieval]\n- two  [No Retrieval], three[No Retrieval]": "Four.</s>",
    }
    answer = run(tree, mode="never").answer
    assert answer.text == "One:\n- two, three Four."
    assert [answer.text[s.start : s.end] for s in answer.segments] == [s.text for s in answer.segments]
