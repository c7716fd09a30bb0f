"""Hand-worked augmentations: what is asked and written, segments, the choice of passages, down- and up-sampling."""

import random
import re
from collections import Counter
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_files import parse_table
from refusals import refused
from scripted_critic import (
    CountingRetriever,
    ScriptedCritic,
    judgment,
    pair,
    passages,
    spans,
)

from critic.augment.algorithm import (
    BALANCES,
    RULES,
    Augmented,
    AugmentOptions,
    Balance,
    Dropped,
    PassageCandidate,
    choose,
    segments,
)
from critic.augment.rows import Variant, provenance, row, target, variants
from critic.augment.run import augment_together
from critic.cases import Case
from critic.judging import Critic
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.judges.external import FunctionJudge
from selfrag.reflection.labels import ISUSE
from selfrag.training.rows import TargetEvidence, TargetText, TargetToken

FULLY = "Fully supported"
PARTLY = "Partially supported"
NONE = "No support / Contradictory"
FOUND = passages("d1", "d2", "d3")
R, I = "Relevant", "Irrelevant"  # noqa: E741 - two columns of a table
text = st.text(st.sampled_from("ab .\n\t\u3000é😀"), max_size=60)


def run(rule=None, pairs=None, find=None, **options):
    critic = ScriptedCritic(rule)
    retriever = CountingRetriever(find or (lambda query: FOUND))
    chosen = AugmentOptions(shortest=0, **options)
    given = pairs if isinstance(pairs, list) else [pairs or pair()]
    results = augment_together(given, critic, retriever, chosen, spans)
    return (results if isinstance(pairs, list) else results[0]), critic, retriever


def layout(result):
    assert isinstance(result, Augmented), result
    parts = target(result)
    texts = [part.text for part in parts if isinstance(part, TargetText)]
    assert "".join(texts) == result.pair.output
    return "|".join(
        f"<{part.passage.id}>"
        if isinstance(part, TargetEvidence)
        else getattr(part, "token", None) or part.text
        for part in parts
    )


def test_no_retrieval_asks_for_utility_only():
    result, critic, retriever = run(
        lambda case: "No Retrieval" if case.group == "Retrieve" else "4"
    )
    whole = "Paris. It lies on the Seine."
    assert layout(result) == f"[No Retrieval]|{whole}|[Utility:4]"
    assert [(case.group, case.output) for case in critic.cases] == [
        ("Retrieve", ""),
        ("IsUse", whole),
    ]
    assert retriever.calls == []


def test_three_way_decisions_per_sentence():
    decisions = {"Two.": "Continue to Use Evidence", "Three.": "No Retrieval"}
    decisions["Four."] = "Retrieval"

    def rule(case):
        if case.group == "Retrieve" and case.output:
            return decisions[case.output]
        if case.group == "IsSup" and case.output == "Two.":
            return PARTLY
        return ...

    def find(query):
        names = "w1 w2" if query.endswith(" One.") else "f1" if "Four" in query else "d"
        return passages(*names.split())

    result, critic, retriever = run(rule, pair("One. Two. Three. Four."), find)
    assert layout(result) == (
        "[Retrieval]|<w1>|[Relevant]|One.|[Fully supported]|[Continue to Use Evidence]| Two.|[Partially supported]|"
        "[No Retrieval]| Three.|[Retrieval]|<f1>|[Relevant]| Four.|[Fully supported]|[Utility:5]"
    )
    asked = "Capital? One. Two. Three. Four.|Capital? One.|Capital? Four."
    assert "|".join(retriever.queries) == asked
    judged = [
        f"{c.output}|{c.preceding}|{c.evidence.id}"
        for c in critic.of("Retrieve")
        if c.output
    ]
    assert judged == [
        "Two.|One.|w1",
        "Three.|One. Two.|w1",
        "Four.|One. Two. Three.|w1",
    ]
    supported = [f"{c.output}{c.evidence.id}" for c in critic.of("IsSup")]
    assert supported == "One.w1 One.w2 Two.w1 Four.f1".split()
    assert all(case.output == "" for case in critic.of("IsRel"))


def test_the_rules_of_the_paper_judge_every_sentence_with_the_initial_passage():
    """Appendix A.3: the first sentence too; a passage that came into use later is not shown. Ten documents (4.3)."""
    found = lambda query: passages("w1") if query.endswith(" Two.") else FOUND  # noqa: E731

    def rule(c):
        return "Retrieval" if c.output == "Two." and c.group == "Retrieve" else ...

    options = {**asdict(RULES["paper"]), "balance": BALANCES["paper"]}
    del options["shortest"]
    result, critic, retriever = run(rule, pair("One. Two. Three."), found, **options)
    assert isinstance(result, Augmented)
    judged = [
        f"{case.output}{case.evidence and case.evidence.id}"
        for case in critic.of("Retrieve")
    ]
    assert judged == "One. Two. Three.None|One.d1|Two.d1|Three.d1".split("|")
    assert RULES["paper"].passages == 10
    assert retriever.queries[0] == "Capital? One. Two. Three."
    alone, critic, _ = run(lambda c: ..., pair("Paris."), **options)
    assert len(critic.of("Retrieve")) == 1  # y_t is y (Algorithm 3)
    assert layout(alone).startswith("[Retrieval]")


def test_without_a_relevant_passage_in_use_nothing_is_continued_or_supported():
    """The first search's best passage is shown until one is in use; that is none to continue with."""
    want = {"Continue to Use Evidence": 1.0}
    answers = lambda case: want if case.group == "Retrieve" and case.output else ...  # noqa: E731
    result, critic, _ = run(answers, first="judged")
    assert layout(result).startswith("[Retrieval]|<d1>|[Relevant]|")
    assert critic.of("Retrieve")[1].evidence == FOUND[0]
    assert result.segments[0].why == "judged to continue, but no passage is in use"
    irrelevant = lambda case: "Irrelevant" if case.group == "IsRel" else answers(case)  # noqa: E731
    result, critic, _ = run(irrelevant)
    assert re.sub("<.*?>", "", layout(result)) == (
        "[Retrieval]||[Irrelevant]|Paris.|[Retrieval]||[Irrelevant]| It lies on the Seine.|[Utility:5]"
    )
    assert critic.of("IsSup") == []


def test_defect_34_a_sentence_without_retrieval_is_not_searched_for():
    _, _, retriever = run(
        lambda case: "No Retrieval" if case.group == "Retrieve" and case.output else ...
    )
    assert retriever.queries == [
        "Capital? Paris. It lies on the Seine.",
        "Capital? Paris.",
    ]


def test_defect_38_searches_and_judgments_of_many_pairs_go_out_together():
    many = [
        pair(f"Answer {n}", id=f"q{n}", instruction=f"Question {n}?") for n in range(50)
    ]
    results, critic, retriever = run(pairs=many)
    assert len(results) == 50
    assert [len(call) for call in retriever.calls] == [50]
    assert [len(call) for call in critic.calls] == [100, 150, 150]


@pytest.mark.parametrize(
    "threshold, retrieves", [(0.0, True), (0.29, True), (0.31, False), (0.9, False)]
)
def test_the_initial_decision_is_the_ratio_of_two_labels(threshold, retrieves):
    shares = {"Retrieval": 0.24, "No Retrieval": 0.56, "Continue to Use Evidence": 0.2}
    result, *_ = run(
        lambda c: shares if c.group == "Retrieve" else ...,
        pair("Paris"),
        threshold=threshold,
    )
    assert (result.segments[0].token == "Retrieval") is retrieves
    assert result.ratio == pytest.approx(0.3)


def test_candidates_go_by_score_and_blank_or_repeated_passages_are_none():
    blank = Passage("b", " \n", "T", 9.0)
    again = Passage("again", "text  of d1")
    nameless = Passage("", "x", "", 0.8)
    for found, expected in (
        ([blank, FOUND[0], again, nameless], ["d1"]),
        ([*reversed(FOUND), FOUND[0]], ["d1", "d2", "d3"]),
        ([Passage(name, name, score=0.5) for name in "cab"], ["c", "a", "b"]),
        ([Passage("b", "b"), Passage("a", "a", score=3.0)], ["b", "a"]),
    ):
        result, critic, _ = run(
            pairs=pair("Paris"), find=lambda query, found=found: found
        )
        assert [c.passage.id for c in result.segments[0].candidates] == expected
        assert len(critic.of("IsRel")) == len(expected)


@pytest.mark.parametrize(
    "mode, expected",
    parse_table("""
off | ["d1", "d2", "d3"]
join | ["g", "d1", "d2", "d3"]
only | ["g"]
"""),
)
def test_gold_passages_join_as_asked(mode, expected):
    given = pair("Paris", passages=(Passage("g", "Paris is the capital."),))
    result, _, retriever = run(pairs=given, gold=mode)
    assert [c.passage.id for c in result.segments[0].candidates] == expected
    assert [c.gold for c in result.segments[0].candidates] == [
        name == "g" for name in expected
    ]
    assert len(retriever.calls) == (mode != "only")
    found, *_ = run(
        pairs=pair("Paris", passages=(Passage("q1/p1", "text  of\nd2"),)), gold="join"
    )
    # what was found too counts once, under the name of the corpus
    first, *others = found.segments[0].candidates
    assert first.passage == FOUND[1]
    assert first.gold
    assert [c.passage.id for c in others] == ["d1", "d3"]


@pytest.mark.parametrize(
    "between", ["\n\n## Input:\n\n", "\n\n### Input:\n", "## Input:\n\n"]
)
def test_the_task_instruction_is_not_searched_for(between):
    given = pair("true", instruction=f"Is it correct?{between}Bern lies on the Aare.")
    assert run(pairs=given)[2].queries == ["Bern lies on the Aare. true"]
    assert run(pairs=given, query="full")[2].queries == [f"{given.instruction} true"]
    # nothing is left without it
    for instruction in ("What does '## Input:' mean?", "Say x.\n\n## Input:\n\n "):
        assert (
            run(pairs=pair("true", instruction=instruction))[2].queries[0].split()[0]
            == instruction.split()[0]
        )


def test_provenance_says_why():
    rule = lambda c: NONE if c.group == "IsSup" and c.evidence == FOUND[0] else ...  # noqa: E731
    result, *_ = run(rule, pair("Paris"))
    record = provenance(Variant(result, "", "retrieves"))
    (segment,) = record["segments"]
    assert [c["issup"]["label"] for c in segment["candidates"]] == [NONE, FULLY, FULLY]
    shares = {"Relevant": 0.9, "Irrelevant": 0.1}
    assert segment["candidates"][0]["isrel"]["p"] == shares
    known = {"start": 0, "end": 5, "chosen": "d2"}
    known["why"] = "initial decision: 0.947 is above 0.5"
    known["rule"] = "relevant and fully supported or partially supported, best of 2"
    assert segment.items() >= known.items()
    found = [(one["id"], one["score"]) for one in record["found"]]
    assert found == [("d1", 1.0), ("d2", 0.5), ("d3", 0.333333)]
    assert record["isuse"]["label"] == "5"
    chosen = next(part for part in target(result) if isinstance(part, TargetEvidence))
    assert chosen.passage == FOUND[1].with_score(None)


def wanting(case):
    return {"Continue to Use Evidence": 1.0} if case.group == "Retrieve" else ...


def continuing(case):
    if case.output == "It lies on the Seine.":
        return "Continue to Use Evidence" if case.group == "Retrieve" else None
    return ...


def unlabelled(group):
    return lambda case: None if case.group == group else ...


BLANK = [Passage("b", ""), Passage("c", "\t")]


@pytest.mark.parametrize(
    "rule, output, found, said",
    [
        (unlabelled("Retrieve"), "", FOUND, "undecided: the critic gave no Retrieve"),
        (unlabelled("IsUse"), "", FOUND, "undecided: the critic gave no IsUse label"),
        (
            continuing,
            "",
            FOUND,
            "undecided: the critic gave no IsSup label for characters 6 to 28",
        ),
        (
            wanting,
            "",
            FOUND,
            "undecided: the critic gave neither Retrieval nor No Retrieval",
        ),
        (None, "", [], "no passage: nothing was found for characters 0 to 6"),
        (None, "", BLANK, "no passage: nothing was found"),
        (None, "word " * 10_000, FOUND, "too long: 50008 characters; the limit"),
        (None, "Paris \ud83d", FOUND, "not Unicode: a lone surrogate"),
    ],
)
def test_defect_36_what_cannot_be_decided_is_never_guessed(rule, output, found, said):
    given = pair(output) if output else pair()
    result, critic, _ = run(rule, given, lambda query: found)
    assert isinstance(result, Dropped)
    assert result.id == "q1"
    assert f"{result.reason}: {result.detail}".startswith(said)
    # what could not be trained on costs nothing
    assert bool(critic.calls) is not bool(output)


BROKEN = Critic({"IsUse": FunctionJudge("broken", ISUSE, lambda inputs: 1 / 0)})


def failing(queries, k):
    raise UserError("the index is gone")


@pytest.mark.parametrize(
    "critic, retriever, said",
    [
        (BROKEN, None, "could not be judged: ZeroDivisionError"),
        (
            ScriptedCritic(),
            None,
            r"no index, and a pair that retrieves brings no passage .* give --index",
        ),
        (ScriptedCritic(), failing, "every search failed: the index is gone"),
    ],
)
def test_a_critic_or_every_search_that_fails_stops_the_run(critic, retriever, said):
    pairs = [pair(id="a"), pair("Bern", id="b")]
    with refused(said):
        augment_together(pairs, critic, retriever, AugmentOptions(), spans)


def test_a_search_that_fails_drops_its_pair_only():
    find = lambda query: failing(query, 1) if "bad" in query else FOUND  # noqa: E731
    (bad, good), *_ = run(pairs=[pair("bad", id="a"), pair("good", id="b")], find=find)
    assert bad == Dropped("a", "search failed", "the index is gone")
    assert isinstance(good, Augmented)


def candidates(*labels):
    return [
        PassageCandidate(
            passage,
            isrel=judgment(Case.of("IsRel", "x"), rel),
            issup=judgment(Case.of("IsSup", "x"), sup),
        )
        for passage, (rel, sup) in zip(passages(*"abcdefghij"), labels, strict=False)
    ]


@pytest.mark.parametrize(
    "labels, choice, chosen",
    [
        ([(R, PARTLY), (R, FULLY), (R, FULLY)], "graded", {1}),
        ([(R, PARTLY), (R, FULLY), (R, FULLY)], "paper", {0}),
        ([(R, NONE), (R, PARTLY), (I, FULLY)], "graded", {1}),
        ([(I, FULLY), (R, FULLY)], "paper", {1}),
        ([(R, None), (R, PARTLY)], "graded", {1}),
        ([(None, FULLY), (R, FULLY)], "graded", {1}),
        ([(R, None), (R, NONE), (I, None)], "graded", {1, 2}),
        ([(None, None), (R, None)], "graded", {None}),
        # Defect 32: members are drawn, not positions.
        (
            [(R, None)] * 6 + [(I, None), (R, None), (I, None), (I, None)],
            "graded",
            {6, 8, 9},
        ),
    ],
)
def test_the_choice_goes_by_label_then_rank_and_the_draw_is_seeded(
    labels, choice, chosen
):
    first, again = (
        [choose(candidates(*labels), choice, random.Random(n))[0] for n in range(60)]
        for _ in range(2)
    )
    assert first == again
    assert set(first) == chosen


@given(
    text=text, cuts=st.lists(st.integers(0, 60), max_size=8), shortest=st.integers(0, 9)
)
def test_segments_joined_are_the_text(text, cuts, shortest):
    at = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:end] for start, end in segments(text, pairwise(at), shortest)]
    assert "".join(pieces) == (text if text.strip() else "")
    assert all(piece.strip() for piece in pieces)
    if len(pieces) > 1:
        assert all(len(piece.strip()) >= shortest for piece in pieces)


def mixed(case):
    return "Irrelevant" if case.group == "IsRel" and case.evidence.id != "d1" else ...


def unaided(case):
    return "No Retrieval" if case.group == "Retrieve" else ...


def many(rule, balance, seed=0, count=2000):
    """Suffixes of the rows that each of many equal pairs gives."""
    found, *_ = run(rule, pair("Paris"))
    each = (replace(found, pair=replace(found.pair, id=f"q{n}")) for n in range(count))
    return [
        tuple(variant.suffix for variant in variants(one, balance, seed))
        for one in each
    ]


@pytest.mark.parametrize(
    "name, share", [("none", 1.0), ("paper", 0.5), ("official", 0.4)]
)
def test_rows_without_retrieval_are_down_sampled(name, share):
    balance = BALANCES[name]
    kept = many(unaided, balance)
    assert len([one for one in kept if one]) / len(kept) == pytest.approx(
        share, abs=0.04
    )
    assert all(many(mixed, balance, count=200))
    # seeded, whatever the neighbours
    assert many(unaided, balance, count=50) == kept[:50]
    assert name == "none" or many(unaided, balance, seed=2, count=50) != kept[:50]


def test_an_irrelevant_passage_is_added_as_a_row_of_its_own_or_swapped_in():
    found = Counter(many(mixed, BALANCES["paper"]))
    assert set(found) == {("",), ("", "#irrelevant")}
    assert found["", "#irrelevant"] / found.total() == pytest.approx(0.25, abs=0.04)
    augmented, *_ = run(mixed, pair("Paris"))
    plain, other = variants(augmented, Balance(irrelevant=1.0), 0)
    assert [part.token for part in row(plain).target if isinstance(part, TargetToken)][
        1
    ] == "[Relevant]"
    tokens = [part.token for part in row(other).target if isinstance(part, TargetToken)]
    assert tokens == ["[Retrieval]", "[Irrelevant]", "[Utility:5]"]
    assert row(other).id == "q1#irrelevant"
    (only,) = variants(augmented, Balance(irrelevant=1.0, mode="swap"), 0)
    assert row(only).id == "q1"
    assert "swapped in" in only.why
    assert only.augmented.segments[0].candidate.passage.id in {"d2", "d3"}


SAID = {"Two.": "No Retrieval", "Three.": "Continue to Use Evidence"}


@pytest.mark.parametrize(
    "rule, changes",
    [
        (None, {}),
        (mixed, {"kind": "long_form"}),
        (lambda c: "Irrelevant" if c.group == "IsRel" else ..., {}),
        # a passage that is continued with after a sentence of opinion stays
        (
            lambda c: (
                SAID.get(c.output, mixed(c)) if c.group == "Retrieve" else mixed(c)
            ),
            {"output": "One. Two. Three."},
        ),
    ],
)
def test_nothing_is_added_where_it_would_make_no_sense(rule, changes):
    found, *_ = run(rule, pair(**{"output": "Paris", **changes}))
    assert [
        variant.suffix for variant in variants(found, Balance(irrelevant=1.0), 0)
    ] == [""]
