"""Hand-worked augmentations: what is asked, in which order, and what is written."""

from __future__ import annotations

import pytest
from scripted_critic import CountingRetriever, ScriptedCritic, pair, passages, spans

from critic.augment.algorithm import Augmented, Dropped, augment
from critic.augment.options import AugmentOptions
from critic.augment.rows import Variant, provenance, target
from critic.augment.run import drive
from critic.pairs import Pair
from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.training.rows import Evidence, Text, Token

FULLY, PARTLY, NONE = "Fully supported", "Partially supported", "No support / Contradictory"
FOUND = passages("d1", "d2", "d3")


def run(rule=None, pairs: Pair | list[Pair] | None = None, find=None, **options):
    critic, retriever = ScriptedCritic(rule), CountingRetriever(find or (lambda query: FOUND))
    chosen = AugmentOptions(shortest=0, **options)
    given = pairs if isinstance(pairs, list) else [pairs or pair()]
    results = drive([augment(p, chosen, spans) for p in given], critic, retriever)
    return (results if isinstance(pairs, list) else results[0]), critic, retriever


def layout(result) -> list[str]:
    assert isinstance(result, Augmented), result
    parts = target(result)
    assert "".join(part.text for part in parts if isinstance(part, Text)) == result.pair.output
    return [
        part.token if isinstance(part, Token) else part.text if isinstance(part, Text) else f"<{part.passage.id}>"
        for part in parts
    ]


def test_no_retrieval_asks_for_utility_only() -> None:
    result, critic, retriever = run(lambda case: "No Retrieval" if case.group == "Retrieve" else "4")
    assert layout(result) == ["[No Retrieval]", "Paris. It lies on the Seine.", "[Utility:4]"]
    assert [(case.group, case.output) for case in critic.cases] == [
        ("Retrieve", ""),
        ("IsUse", "Paris. It lies on the Seine."),
    ]
    assert retriever.calls == []


def test_three_way_decisions_per_sentence() -> None:
    decisions = {"Two.": "Continue to Use Evidence", "Three.": "No Retrieval", "Four.": "Retrieval"}

    def rule(case):
        if case.group == "Retrieve" and case.output:
            return decisions[case.output]
        if case.group == "IsSup" and case.output == "Two.":
            return PARTLY
        return ...

    def find(query):
        return passages("w1", "w2") if query.endswith(" One.") else passages("f1") if "Four" in query else FOUND

    result, critic, retriever = run(rule, pair("One. Two. Three. Four."), find)
    assert layout(result) == [
        *("[Retrieval]", "<w1>", "[Relevant]", "One.", "[Fully supported]"),
        *("[Continue to Use Evidence]", " Two.", "[Partially supported]"),
        *("[No Retrieval]", " Three."),
        *("[Retrieval]", "<f1>", "[Relevant]", " Four.", "[Fully supported]"),
        "[Utility:5]",
    ]
    assert retriever.queries == ["Capital? One. Two. Three. Four.", "Capital? One.", "Capital? Four."]
    judged = [(c.output, c.preceding, c.evidence.id) for c in critic.of("Retrieve") if c.output]
    assert judged == [("Two.", "One.", "w1"), ("Three.", "One. Two.", "w1"), ("Four.", "One. Two. Three.", "w1")]
    assert [(c.output, c.evidence.id) for c in critic.of("IsSup")] == [
        *(("One.", "w1"), ("One.", "w2")),
        ("Two.", "w1"),
        ("Four.", "f1"),
    ]
    assert all(case.output == "" for case in critic.of("IsRel"))


def test_the_initial_passage_is_shown_until_one_is_in_use_and_cannot_be_continued() -> None:
    def rule(case):
        return "Continue to Use Evidence" if case.group == "Retrieve" and case.output else ...

    result, critic, _ = run(rule, first="judged")
    assert [part for part in layout(result) if part.startswith(("[R", "[C"))] == [
        *("[Retrieval]", "[Relevant]"),
        "[Continue to Use Evidence]",
    ]
    assert critic.of("Retrieve")[1].evidence == FOUND[0]
    assert result.segments[0].why == "judged to continue, but no passage is in use"


def test_a_first_sentence_may_be_judged_not_to_need_a_passage() -> None:
    result, *_ = run(
        lambda c: "No Retrieval" if c.output.startswith("Paris.") and c.group == "Retrieve" else ..., first="judged"
    )
    assert layout(result)[:2] == ["[No Retrieval]", "Paris."]


def test_an_irrelevant_passage_has_no_support_token_and_cannot_be_continued() -> None:
    def rule(case):
        return {"IsRel": "Irrelevant", "Retrieve": "Continue to Use Evidence" if case.output else "Retrieval"}.get(
            case.group, ...
        )

    result, critic, _ = run(rule)
    found = layout(result)
    assert found[0] == "[Retrieval]"
    assert found[2:5] == ["[Irrelevant]", "Paris.", "[Retrieval]"]
    assert found[-3:] == ["[Irrelevant]", " It lies on the Seine.", "[Utility:5]"]
    assert critic.of("IsSup") == []


def test_support_of_irrelevant_passages_is_judged_on_request_and_changes_nothing() -> None:
    rule = lambda case: "Irrelevant" if case.evidence in FOUND[1:] and case.group == "IsRel" else ...  # noqa: E731
    plain, few, _ = run(rule)
    full, many, _ = run(rule, judge_all=True)
    assert target(plain) == target(full)
    assert len(many.of("IsSup")) == 3 * len(few.of("IsSup"))


def test_a_single_sentence_is_searched_for_once() -> None:
    result, _, retriever = run(pairs=pair("Paris"))
    assert retriever.queries == ["Capital? Paris"]
    assert result.segments[0].query == "Capital? Paris"


def test_among_supporting_passages_the_best_retrieved_is_shown_as_the_paper_says() -> None:
    rule = lambda c: PARTLY if c.group == "IsSup" and c.evidence == FOUND[0] else ...  # noqa: E731
    assert layout(run(rule, pair("Paris"))[0])[1:5] == ["<d1>", "[Relevant]", "Paris", "[Partially supported]"]
    assert layout(run(rule, pair("Paris"), choice="graded")[0])[1] == "<d2>"


def test_defect_34_a_sentence_without_retrieval_is_not_searched_for() -> None:
    _, _, retriever = run(lambda case: "No Retrieval" if case.group == "Retrieve" and case.output else ...)
    assert retriever.queries == ["Capital? Paris. It lies on the Seine.", "Capital? Paris."]


def test_defect_38_searches_and_judgments_of_many_pairs_go_out_together() -> None:
    many = [pair(f"Answer {n}", id=f"q{n}", instruction=f"Question {n}?") for n in range(50)]
    results, critic, retriever = run(pairs=many)
    assert len(results) == 50
    assert [len(call) for call in retriever.calls] == [50]
    assert [len(call) for call in critic.calls] == [100, 150, 150]


@pytest.mark.parametrize("group", ["Retrieve", "IsUse"])
def test_defect_36_an_unlabelled_case_is_never_guessed(group: str) -> None:
    result, *_ = run(lambda case: None if case.group == group else ...)
    assert result == Dropped("q1", "undecided", f"the critic gave no {group} label")


def test_an_undecided_sentence_drops_the_pair_and_no_other() -> None:
    rule = lambda case: None if case.output == "It lies on the Seine." else ...  # noqa: E731
    results, *_ = run(rule, [pair(), pair("Bern.", id="q2")])
    assert results[0] == Dropped("q1", "undecided", "the critic gave no Retrieve label for characters 6 to 28")
    assert layout(results[1])[3] == "Bern."


def test_undecided_support_of_a_continued_sentence_drops_the_pair() -> None:
    def rule(case):
        if case.output == "It lies on the Seine.":
            return "Continue to Use Evidence" if case.group == "Retrieve" else None
        return ...

    result, *_ = run(rule)
    assert isinstance(result, Dropped)
    assert "no IsSup label" in result.detail


def test_a_critic_that_wants_to_continue_before_anything_was_written_is_undecided() -> None:
    result, *_ = run(lambda c: {"Continue to Use Evidence": 1.0} if c.group == "Retrieve" else ...)
    assert isinstance(result, Dropped)
    assert result.reason == "undecided"


@pytest.mark.parametrize(("threshold", "retrieves"), [(0.0, True), (0.29, True), (0.31, False), (0.9, False)])
def test_the_initial_decision_is_the_ratio_of_two_labels(threshold: float, retrieves: bool) -> None:
    shares = {"Retrieval": 0.24, "No Retrieval": 0.56, "Continue to Use Evidence": 0.2}
    result, *_ = run(lambda c: shares if c.group == "Retrieve" else ..., pair("Paris"), threshold=threshold)
    assert (result.segments[0].token == "Retrieval") is retrieves
    assert result.ratio == pytest.approx(0.3)


def test_the_first_judgment_sees_the_output_on_request() -> None:
    _, critic, _ = run(pairs=pair("Paris"), initial="output")
    assert critic.of("Retrieve")[0].output == "Paris"


def test_nothing_found_drops_the_pair_with_a_line() -> None:
    result, *_ = run(find=lambda query: [])
    assert result == Dropped("q1", "no passage", "nothing was found for characters 0 to 6")


def test_blank_and_repeated_passages_are_no_candidates() -> None:
    found = [
        Passage("b", " \n", "T", 9.0),
        FOUND[0],
        Passage("again", "text  of d1", "", 0.9),
        Passage("", "x", "", 0.8),
    ]
    result, critic, _ = run(pairs=pair("Paris"), find=lambda query: found)
    assert [c.passage.id for c in result.segments[0].candidates] == ["d1"]
    assert len(critic.of("IsRel")) == 1


def test_empty_passages_only_are_nothing_found() -> None:
    result, *_ = run(find=lambda query: [Passage("b", ""), Passage("c", "\t")])
    assert isinstance(result, Dropped)
    assert result.reason == "no passage"


def test_a_search_that_fails_drops_its_pair_only() -> None:
    def find(query):
        if "bad" in query:
            raise UserError("cannot encode this")
        return FOUND

    results, *_ = run(pairs=[pair("bad", id="a"), pair("good", id="b")], find=find)
    assert results[0] == Dropped("a", "search failed", "cannot encode this")
    assert isinstance(results[1], Augmented)


def test_a_retriever_that_always_fails_stops_the_run() -> None:
    def find(query):
        raise UserError("the index is gone")

    with pytest.raises(UserError, match="every search failed: the index is gone"):
        run(pairs=[pair(id="a"), pair("Bern", id="b")], find=find)


def test_a_critic_that_loses_cases_stops_the_run() -> None:
    class Short:
        def judge(self, cases):
            return []

    with pytest.raises(UserError, match="critic Short gave 0 judgments for 2 cases"):
        drive([augment(pair(), AugmentOptions(), spans)], Short(), None)


def test_a_search_without_a_retriever_stops_the_run() -> None:
    with pytest.raises(UserError, match=r"no index, and a pair that retrieves brings no passage .* give --index"):
        drive([augment(pair(), AugmentOptions(), spans)], ScriptedCritic(), None)


@pytest.mark.parametrize(
    ("mode", "expected"), [("off", ["d1", "d2", "d3"]), ("join", ["g", "d1", "d2", "d3"]), ("only", ["g"])]
)
def test_gold_passages_join_as_asked(mode: str, expected: list[str]) -> None:
    given = pair("Paris", passages=(Passage("g", "Paris is the capital."),))
    result, _, retriever = run(pairs=given, gold=mode)
    assert [c.passage.id for c in result.segments[0].candidates] == expected
    assert [c.gold for c in result.segments[0].candidates] == [name == "g" for name in expected]
    assert len(retriever.calls) == (mode != "only")


def test_a_gold_passage_that_was_found_counts_once_under_the_name_of_the_corpus() -> None:
    given = pair("Paris", passages=(Passage("q1/p1", "text  of\nd2"),))
    result, *_ = run(pairs=given, gold="join")
    first, *others = result.segments[0].candidates
    assert (first.passage, first.gold) == (FOUND[1], True)
    assert [c.passage.id for c in others] == ["d1", "d3"]


def test_the_task_instruction_can_be_left_out_of_the_query() -> None:
    given = pair("true", instruction="Is it correct?\n\n## Input:\n\nBern lies on the Aare.")
    assert run(pairs=given)[2].queries == ["Is it correct?\n\n## Input:\n\nBern lies on the Aare. true"]
    assert run(pairs=given, query="input")[2].queries == ["Bern lies on the Aare. true"]


def test_a_huge_pair_costs_nothing_and_is_named() -> None:
    result, critic, _ = run(pairs=pair("word " * 10_000), longest=1000)
    assert result == Dropped("q1", "too long", "50008 characters; the limit is 1000")
    assert critic.calls == []


def test_half_a_character_is_refused() -> None:
    result, *_ = run(pairs=pair("Paris \ud83d"))
    assert isinstance(result, Dropped)
    assert result.reason == "not Unicode"


def test_provenance_says_why() -> None:
    rule = lambda c: NONE if c.group == "IsSup" and c.evidence == FOUND[0] else ...  # noqa: E731
    result, *_ = run(rule, pair("Paris"))
    record = provenance(Variant(result, "", "retrieves"))
    (segment,) = record["segments"]
    assert (segment["start"], segment["end"], segment["chosen"]) == (0, 5, "d2")
    assert segment["why"] == "initial decision: 0.947 is above 0.5"
    assert segment["rule"] == "relevant and fully supported or partially supported, best of 2"
    assert [c["issup"]["label"] for c in segment["candidates"]] == [NONE, FULLY, FULLY]
    assert segment["candidates"][0]["isrel"]["p"] == {"Relevant": 0.9, "Irrelevant": 0.1}
    assert record["found"] == [{"id": "d1", "score": 1.0}, {"id": "d2", "score": 0.5}, {"id": "d3", "score": 0.333333}]
    assert record["isuse"]["label"] == "5"
    chosen = next(part for part in target(result) if isinstance(part, Evidence))
    assert chosen.passage == FOUND[1].with_score(None)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"choice": "best"}, "choice='best'"),
        ({"passages": 0}, "passages=0"),
        ({"threshold": 1.0}, "threshold=1: "),
        ({"longest": 0}, "longest=0"),
        ({"gold": "yes"}, "off, join, only"),
    ],
)
def test_options_refuse_what_they_do_not_know(bad: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        AugmentOptions(**bad)
