"""Citation figures by hand: against gold, by entailment as ALCE defines them, and by grades of a chat model."""

import math

import pytest
from answering import Answering
from json_files import parse_table
from refusals import refused

from retrieval.passage import Passage
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.alce import (
    CitedClaim,
    cited_sentences,
    cites,
    claim_recall,
    marked_sentences,
)
from selfrag.evaluation.metrics.citations import (
    Cited,
    by_passage,
    by_sentence,
    pair_figures,
)
from selfrag.evaluation.metrics.grading import Grader, load_grader
from selfrag.evaluation.metrics.registry import get_metric, ratio
from selfrag.judges.entailment import premise
from selfrag.judges.wire import Completion
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.requests import Failed

PASSAGES = {
    one.id: one
    for one in (Passage("p1", "Ann wrote it.", "Ann"), Passage("p2", "It rained.", ""))
}
THREE = tuple(
    Passage(f"p{i}", text, "T")
    for i, text in enumerate(["Ann wrote it.", "Bob.", "By Ann, too."], 1)
)
SHORT = Item("q", "who?", THREE, gold=frozenset({"p1", "p2"}), answers=("Ann",))
NO_ANSWER = Item("q", "why?", THREE, gold=frozenset(), answerable=False)


def figure(name, *outputs):
    return ratio([get_metric(name).part(SHORT, one) for one in outputs])


def test_citations_of_two_items():
    one = Output("Ann", cited=("p1", "p3"))
    other = Output("Bob", cited=("p2",))
    silent = Output("Bob")
    # 2 of 3 citations are gold; one item has half of its gold passages, one also half, one none.
    assert figure("citation_precision", one, other, silent) == pytest.approx(2 / 3)
    assert figure("citation_recall", one, other, silent) == pytest.approx(1 / 3)
    # ALCE's mean over items: 1/2, 1 and 0.
    assert figure("citation_precision_alce", one, other, silent) == pytest.approx(0.5)
    # p1 and p3 hold the answer, p2 does not.
    assert figure("citation_bears_answer", one, other) == pytest.approx(2 / 3)
    # P, R = 1/2, 1/2; then 1, 1; then nothing is cited: the mean F is not the F of the means.
    both = Output("Ann", cited=("p1", "p2"))
    assert figure("citation_f1", one, both, silent) == pytest.approx((0.5 + 1 + 0) / 3)


def test_an_abstention_cites_nothing_and_an_unanswerable_question_has_no_right_citation():
    precision, recall = get_metric("citation_precision"), get_metric("citation_recall")
    declined = Output("I don't know.", cited=("p1",))
    assert precision.part(SHORT, declined) == (0.0, 0.0)
    assert recall.part(SHORT, declined) == (0.0, 1.0)
    assert precision.part(NO_ANSWER, Output("Because.", cited=("p1",))) == (0.0, 1.0)
    assert recall.part(NO_ANSWER, Output("Because.", cited=("p1",))) is None
    assert precision.part(Item("q", "?"), Output("x", cited=("p1",))) is None
    # An option that sounds like an abstention keeps its citation.
    item = Item(
        "q",
        "?",
        THREE,
        gold=frozenset({"p1"}),
        label="I do not know",
        options=("I do not know", "x"),
    )
    assert precision.part(item, Output("I do not know", cited=("p1",))) == (1.0, 1.0)


def test_pairs_by_hand():
    gold = [[Cited(0, "p", 0), Cited(0, "p", 1), Cited(1, "q", 0)], [Cited(0, "p", 2)]]
    given = [[Cited(0, "p", 1), Cited(1, "p", 0)], [Cited(0, "p", 2)]]
    found = pair_figures([*map(by_sentence, gold)], [*map(by_sentence, given)])
    assert (found.precision.value, found.exact.value) == pytest.approx((2 / 3, 0.5))
    # Gold (0, p), (1, q) and (0, p); given (0, p), (1, p) and (0, p).
    found = pair_figures([*map(by_passage, gold)], [*map(by_passage, given)])
    assert found.precision.value == found.recall.value == pytest.approx(2 / 3)
    assert pair_figures([set()], [set()]).exact.value == 1.0
    with pytest.raises(ValueError, match="shorter"):
        pair_figures([{1}], [])


class Letters:
    """A premise that holds all letters of a claim entails it; `?` in a claim leaves the judge without a verdict."""

    def __init__(self):
        self.rounds = []

    def __call__(self, pairs):
        self.rounds.append(list(pairs))
        return [
            None if "?" in claim else set(claim) <= set(premise)
            for premise, claim in pairs
        ]


def claims(text):
    """Read claims and what each cites, such as `ab < a b | g`."""
    parts = (one.partition(" < ") for one in text.split(" | "))
    return [CitedClaim(said, tuple(cited.split())) for said, _, cited in parts]


def test_alce_by_hand():
    """`ab` is entailed by all together, and `c` is not needed: 1, and 2 of 3; each is enough for `d`: 1, and 2 of 2.

    `f` does not entail `e`: 0, and 0 of 1; `g` cites nothing: 0.
    """
    response = claims("ab < a b c | d < d dx | e < f | g")
    found, none = cites([response, []], Letters())
    assert none is None
    assert (found.recall, found.precision) == pytest.approx((2 / 4, 4 / 6))
    assert found.f1 == pytest.approx(2 * 0.5 * (4 / 6) / (0.5 + 4 / 6))
    # The fourth citation would have been enough, but is not read.
    three, uncited = cites([claims("z < a b c z"), claims("a")], Letters())
    for one in (three, uncited):
        assert one.recall == one.precision == one.f1 == 0.0


def test_the_judge_is_asked_in_rounds_for_what_is_needed_and_a_missing_verdict_leaves_a_response_out():
    judge = Letters()
    cites([claims("ab < a ab | z < a b | a < a")] * 2, judge)
    assert judge.rounds == [
        [("a\nab", "ab"), ("a\nb", "z"), ("a", "a")],
        [("a", "ab"), ("ab", "ab")],  # not of `z`, which is not recalled
        # ("ab", "ab") is what is left without the passage that does not entail, and is known already
    ]
    unknown = claims("a < a | ? < a")
    # nobody needs to be asked about what cites nothing
    found = cites([unknown[:1], unknown, claims("?")], Letters())
    assert [None if one is None else one.f1 for one in found] == [1.0, None, 0.0]


def test_claim_recall_by_hand():
    judge = Letters()
    found = claim_recall(
        "abc [1]||ab|ab".split("|"), [["a", "ac", "d"], ["a"], [], ["a", "?"]], judge
    )
    assert found == [pytest.approx(2 / 3), 0.0, None, None]
    assert claim_recall([], [], judge) == []
    assert claim_recall(["ab [1]\ncd"], [["a", "c"]], judge) == [0.5]  # the first line
    judge.rounds.clear()
    claim_recall(["ab", "ab", ""], [["a", "b"], ["a"], ["c"]], judge)
    # each pair once, nothing of empty answers
    assert judge.rounds == [[("ab", "a"), ("ab", "b")]]


def test_sentences_cite_their_segment():
    output = Output(
        "Ann did. It rained. So.",
        ("p1",),
        segments=(("Ann did. It rained.", "p1"), (" So.", None)),
    )
    own = ("Title: Ann\nAnn wrote it.",)
    wanted = (
        CitedClaim("Ann did.", own),
        CitedClaim("It rained.", own),
        CitedClaim("So."),
    )
    assert cited_sentences(output, PASSAGES) == wanted

    # A system that rests on all it read cites all with every sentence; an abstention cites nothing.
    output = Output(
        "Ann. Bob.", ("p1", "p2"), ("p1", "p2"), True, (("Ann. Bob.", None),)
    )
    both = (premise(PASSAGES["p1"]), "It rained.")
    assert cited_sentences(output, PASSAGES) == (
        CitedClaim("Ann.", both),
        CitedClaim("Bob.", both),
    )
    output = Output("I don't know.", ("p1",), segments=(("I don't know.", "p1"),))
    assert cited_sentences(output, PASSAGES) == (CitedClaim("I don't know."),)
    with refused("'p9'"):
        cited_sentences(Output("Ann.", ("p9",), segments=(("Ann.", "p9"),)), PASSAGES)


def test_numbers_in_brackets_are_citations_of_the_first_line_where_a_caller_says_so():
    said = "Ann wrote [1][2]. It rained. [2] So it did [3].\n[1] So."
    output = Output(said, ("p2",), ("p1", "p2"), True, (("..", None),))
    assert cited_sentences(output, PASSAGES, marked=True) == (
        CitedClaim("Ann wrote.", tuple(map(premise, PASSAGES.values()))),
        CitedClaim("It rained.", ("It rained.",)),
        CitedClaim("So it did."),  # there is no third passage
    )
    own = Output("Ann did [2].", ("p1",), ("p1", "p2"), True, (("Ann did [2].", "p1"),))
    # citations by segment
    assert cited_sentences(own, PASSAGES, marked=True) == cited_sentences(own, PASSAGES)


@pytest.mark.parametrize(
    "said",
    [
        "S one. [1]. S two. [2].",
        "S one. [1]. S two [2].",
        "S one.[1]. S two! [2]!",
        "\u53e5\u4e00\u3002[1]\u3002\u53e5\u4e8c\u3002[2]",
    ],
)
def test_e6_a_full_stop_behind_a_citation_does_not_join_two_sentences(said):
    claims = marked_sentences(said, list(PASSAGES.values()))
    assert [claim.passages for claim in claims] == [
        (premise(passage),) for passage in PASSAGES.values()
    ]


def grader(labels):
    """Gives the label for a piece of a question and a piece of what is judged; fails where there is none."""

    def answer(request):
        (turn,), (slot,) = request.prompt.messages, request.slots
        for pieces, label in labels.items():
            if all(piece in turn.content for piece in pieces):
                shares = (math.log(0.9 if x == label else 0.01) for x in slot.surfaces)
                return Completion("", "stop", scores=(tuple(shares),))
        return Failed("no answer")

    executor = Answering(answer)
    return Grader(executor, "m"), executor


def test_three_grades_of_support_as_longbench_cite_counts_them():
    judge, executor = grader(
        {
            (one, other): label
            for one, other, label in parse_table("""
How far | Goethe wrote Faust. | fully
How far | He wrote it in Rome. | partly
How far | It is prose. | none
The sentence is one | Sentence: So much for that. | no
The sentence is one | Sentence: It sold well. | yes
any key point | By Goethe. | relevant
any key point | A river. | irrelevant
""")
        }
    )
    goethe, river = ("By Goethe.",), ("A river.",)
    response = [
        CitedClaim("Goethe wrote Faust.", goethe + river),
        CitedClaim("He wrote it in Rome.", goethe),
        CitedClaim("It is prose.", river),
        *claims("So much for that. | It sold well."),
    ]
    (found, nothing, silent) = judge.cites(
        ["Who?"] * 3, [response, [], [CitedClaim("It is blue.")]]
    )
    # (1 + 0.5 + 0 + 1 + 0) / 5 and 2 of 4 citations; without a grade there is no figure.
    assert found.recall == 0.5
    assert found.precision == 0.5
    assert nothing.recall == 0.0
    assert nothing.precision == 0.0
    assert nothing.f1 == 0.0
    assert silent is None
    seen = [request.prompt.messages[0].content for request in executor.requests]
    # what a sentence cites is one support
    assert any("By Goethe." in one and "A river." in one for one in seen)


def test_a_grader_breaks_answers_into_statements_and_is_asked_in_other_words(
    tmp_path, monkeypatch
):
    """RAGAS's statements; where the model writes none, the sentences stand."""
    replies = {"Both": '{"statements": "Goethe wrote Faust. | Faust is long. |"}'}

    def answer(request):
        (turn,) = request.prompt.messages
        reply = replies.get("Both" if "Both" in turn.content else "")
        return Failed("no") if reply is None else Completion(reply, "stop")

    executor = Answering(answer)
    module = "selfrag.evaluation.metrics.grading.chat_model"
    monkeypatch.setattr(module, lambda spec: (executor, "m", None))
    words = tmp_path / "words.json"
    words.write_text('{"statements": "List all claims."}')
    states = [
        JudgeInput((Message("user", "Who?"), Message("assistant", said)))
        for said in ("Both. He did.", "One. Two.")
    ]
    assert load_grader("m", words).statements(states) == [
        ["Goethe wrote Faust.", "Faust is long."],
        ["One.", "Two."],
    ]
    assert "List all claims." in executor.requests[0].prompt.messages[0].content
    for content, message in (
        ("[]", "holds no object"),
        ('{"supports": "x"}', "unknown question 'supports'; did you mean support"),
        ('{"support": 3}', "support must be a text"),
    ):
        words.write_text(content)
        with refused(message):
            load_grader("m", words)


def test_a_model_says_who_does_not_know_and_rates_against_a_reference():
    said = "Nobody can tell from this.|Perhaps Goethe, who knows.|Goethe.|?".split("|")
    kinds = zip(said, ("unknown", "partly", "answer"), strict=False)
    states = [
        JudgeInput((Message("user", "Who wrote Faust?"), Message("assistant", one)))
        for one in said
    ]
    judge, _ = grader({("Does the last message", one): label for one, label in kinds})
    assert judge.abstained(states) == [True, False, False, None]
    judge, _ = grader(
        {
            ("Rate the", "Reference: In 1808."): "10",
            ("Rate the", "Reference: Goethe"): "04",
        }
    )
    assert judge.quality(states[:3], ["In 1808.", "Goethe", "Nobody"]) == [
        1.0,
        pytest.approx(1 / 3),
        None,
    ]
