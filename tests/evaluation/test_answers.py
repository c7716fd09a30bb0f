"""Metrics of answers by hand; the registry: names parse back, plug-ins join, nothing is NaN, the page names all."""

import math
import random
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics import registry
from selfrag.evaluation.metrics.answers import (
    LISTS,
    answer_recall,
    answer_recall_words,
    contains,
    exact_match,
    list_figures,
    official_match,
    read_option,
    rouge_l,
    rouge_lsum,
    str_em,
    str_hit,
    token_f1,
)
from selfrag.evaluation.metrics.rankings import ndcg_at, recall_at
from selfrag.evaluation.metrics.registry import (
    JUDGED,
    METRICS,
    PARAMETRIC,
    Metric,
    get_metric,
    metrics,
    ratio,
)
from selfrag.evaluation.normalisation import contains_any

PASSAGES = tuple(
    Passage(f"p{i}", text, "T")
    for i, text in enumerate(["Ann wrote it.", "Bob.", "By Ann, too."], 1)
)
SHORT = Item(
    "q",
    "who?",
    PASSAGES,
    gold=frozenset({"p1", "p2"}),
    answers=("Ann", "Anne"),
    references=("Ann",),
)
LONG = Item(
    "q",
    "why?",
    PASSAGES,
    gold=frozenset({"p1"}),
    answerable=True,
    references=("the cat sat", "a dog"),
)
NO_ANSWER = Item("q", "why?", PASSAGES, gold=frozenset(), answerable=False)
LETTERS = Item("q", "Choose.", label="B", options=("Venus", "Mars", "a red planet"))
CLAIM = Item("q", "True?", label="false", options=("true", "false"))
SETS = (("New York", "NYC"), ("The Beatles",), ("Caf\u00e9",))
SEVERAL = Item("q", "which?", answer_sets=SETS)
BARE = Item("q", "?")


def part(name, item, said):
    return get_metric(name).part(item, Output(said) if isinstance(said, str) else said)


def test_defect_28_the_official_match_is_there_under_its_own_name_and_the_other_reads_words():
    assert official_match("D. Atoms", ["A"]) == 1.0
    assert contains("D. Atoms", ["A"]) == 0.0
    assert official_match("paris", ["Paris"]) == 0.0
    assert contains("It is paris.", ["London", "Paris"]) == 1.0


@pytest.mark.parametrize(
    "metric", [official_match, contains, exact_match, token_f1, rouge_l, rouge_lsum]
)
def test_defect_29_a_text_in_place_of_a_list_is_refused(metric):
    for wrong in ("false", []):
        with refused("list"):
            metric("true", wrong)
    for wrong in ("Paris", [], ["Paris"], [[]]):
        with refused("list of lists"):
            str_em("Paris", wrong)


def test_contains_whole_words_only():
    assert contains_any("It sank in Havana Harbor.", ["Manila", "the Havana harbor"])
    assert not contains_any("In 1998.", ["19", "98", "199"])
    assert contains_any("Beyonc\u00e9 sang", ["beyonce\u0301"])
    assert not contains_any("a the an", ["The"])  # normalises to nothing


def test_abstentions():
    declined = (
        "",
        " . ",
        "I don't know.",
        "I don\u2019t know",
        "I'm not sure.",
        "I do not know the answer.",
    )
    assert all(map(abstains, declined))
    assert not any(
        map(abstains, ("Paris", "No", "She did not know it then", "unknown soldier"))
    )


def test_exact_match_and_token_f1():
    assert exact_match("The Beatles!", ["beatles"]) == 1.0
    assert exact_match("The Beatles of Liverpool", ["beatles"]) == 0.0
    # 2 words in common; 3 and 4 words: 2 * 2 / 7. The other answer shares none.
    assert token_f1("in New York", ["New York City today", "Paris"]) == pytest.approx(
        4 / 7
    )
    assert token_f1("york york", ["york"]) == pytest.approx(2 / 3)
    assert (
        token_f1("the", ["the"]),
        token_f1("the", ["a"]),
        token_f1("", ["york"]),
    ) == (1.0, 0.0, 0.0)


def test_an_answer_of_articles_only_is_compared_as_it_is_written():
    """Audit E3, defect 13."""
    assert (
        contains("Vitamin A", ["A"])
        == contains("(A)", ["A"])
        == contains("I like The The", ["The The"])
        == 1.0
    )
    assert (
        contains("It is a vitamin", ["A"])
        == contains("", ["A"])
        == contains("Vitamin A", ["?"])
        == 0.0
    )
    assert (
        exact_match("", ["A"]),
        exact_match("A.", ["A"]),
        exact_match("", ["?"]),
        exact_match("", [""]),
    ) == (
        0,
        1,
        0,
        1,
    )
    assert token_f1("", ["A"]) == 0.0
    assert token_f1("Vitamin A", ["A"]) == pytest.approx(2 / 3)
    assert (str_em("Vitamin A", [["A"], ["C"]]), str_em("a vitamin", [["A"]])) == (
        0.5,
        0.0,
    )
    assert list_figures("A, B", [["A"], ["B"]])["list_f1"] == 1.0


@pytest.mark.parametrize(
    "text, answer",
    [
        ("应当用八十度的水。", "八十度"),  # audit E4
        ("サウジアラビアです。", "サウジアラビア"),
        ("서울은 수도이다.", "서울"),
        ("กรุงเทพเป็นเมืองหลวง", "กรุงเทพ"),
        ("Shaquille O’Neal played", "O'Neal"),  # audit E5
        ("from 1939–1945.", "1939-1945"),
        ("from 1939—1945", "1939–1945"),
        ("in １９４５", "1945"),
        ("the ﬁrst “Self-RAG” model", 'first "self‑rag"'),
        ("Paris—the capital", "Paris"),
        ("Cafe\u0301", "CAFÉ"),
        ("Die Straße", "STRASSE"),
        ("هل ١٩٤٥؟", "1945"),
    ],
)
def test_the_same_words_in_another_script_or_typography_match(text, answer):
    """Field audit E4 and E5: Chinese, curly quotes, dashes and full width never matched."""
    assert (
        contains(text, [answer])
        == str_em(text, [[answer]])
        == exact_match(f"{answer}。", [answer])
        == 1.0
    )
    assert token_f1(text, [answer]) > 0.3
    assert contains("Something else", [answer]) == 0.0


@pytest.mark.parametrize(
    "text, item, option",
    [
        *(
            (text, LETTERS, "B")
            for text in (
                "B",
                " (B) Mars",
                "B: Mars",
                "**B.**",
                "The answer is B.",
                "It is Mars.",
            )
        ),
        ("Answer: B\nbecause", LETTERS, "B"),
        ("A dog", LETTERS, None),  # an article
        *((text, LETTERS, None) for text in ("b", "D. Atoms", "Mars or Venus", "")),
        ("False.", CLAIM, "false"),
        ("TRUE", CLAIM, "true"),
        ("This statement is false", CLAIM, "false"),
        ("true or false?", CLAIM, None),
    ],
)
def test_options_are_read(text, item, option):
    assert read_option(text, item) == option


OLD = Output.from_record(
    {"id": "q", "text": "I don't know.", "cited": [], "read": [], "retrieved": True}
    | {"segments": [], "usage": {}}
)


@pytest.mark.parametrize(
    "name, item, said, expected",
    [
        ("accuracy", LETTERS, "B", 1.0),
        ("accuracy", LETTERS, "B: Mars", 0.0),  # letter for letter
        ("accuracy", LETTERS, None, 0.0),
        ("option_match", LETTERS, "It is Mars.", 1.0),
        ("option_unread", LETTERS, "Perhaps.", 1.0),
        ("option_unread", LETTERS, "A", 0.0),
        ("option_unread", LETTERS, None, None),
        ("official_match", CLAIM, "# REFUTES", 1.0),
        ("official_match", CLAIM, "False", 0.0),  # case-sensitive
        ("official_match", SHORT, ":Ann", 1.0),
        ("answer_recall", SHORT, "by anne", 0.0),
        ("str_em", SHORT, "by anne", 1.0),
        ("str_em", SEVERAL, "NYC", 1 / 3),
        ("str_hit", BARE, "x", None),
        ("long_form", LONG, "the big cat lies", 4 / 7),
        ("long_form", NO_ANSWER, "I don't know.", 1.0),
        ("long_form", NO_ANSWER, None, 0.0),
        ("answerability", NO_ANSWER, "Because.", 0.0),
        ("answerability", LONG, "I don't know.", 0.0),
        ("declines_unanswerable", NO_ANSWER, "I don't know.", 1.0),
        ("answers_answerable", LONG, "I don't know.", 0.0),
        # an abstention in words of its own, and a record of before
        (
            "declines_unanswerable",
            NO_ANSWER,
            Output("No entry.", abstained=True, reason="guardrail"),
            1.0,
        ),
        ("declines_unanswerable", NO_ANSWER, OLD, 1.0),
        ("words", BARE, "Ann wrote [1][2] it.", 3.0),
    ],
)
def test_metrics_of_one_answer(name, item, said, expected):
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    assert part(name, item, said) == (
        None if expected is None else pytest.approx((expected, 1.0))
    )


def test_three_readings_of_contains():
    text = "It was NYC, where beatles lived [1]."
    # "beatles" is not "The Beatles" letter for letter
    assert answer_recall(text, SETS) == pytest.approx(1 / 3)
    assert str_em(text, SETS) == answer_recall_words(text, SETS) == pytest.approx(2 / 3)
    assert (
        answer_recall("a nyctalope", SETS)
        == answer_recall_words("a nyctalope", SETS)
        == 0.0
    )
    # a substring, as in ALCE
    assert str_em("a nyctalope", SETS) == pytest.approx(1 / 3)
    # The first line, without citation marks.
    assert str_em("New [1] York\nThe Beatles", SETS) == pytest.approx(1 / 3)
    assert answer_recall_words("New York.\nThe Beatles", SETS) == pytest.approx(2 / 3)
    assert str_em("\n\n New York", SETS) == pytest.approx(1 / 3)
    assert (
        str_em("anything", [["The"], ["?"], [""]])
        == answer_recall("anything", [[""]])
        == 0.0
    )
    assert (
        str_hit("NYC, beatles, caf\u00e9", SETS),
        str_hit("NYC, beatles", SETS),
    ) == (1.0, 0.0)


def test_qampari_by_hand():
    gold = [["Big Ben"], ["Nelson's Column", "the column of Nelson"], ["Hyde Park"]]
    found = list_figures(
        "Big Ben, Column of Nelson, Eiffel Tower [1].\nHyde Park", gold
    )
    assert found == pytest.approx(dict.fromkeys(LISTS, 2 / 3) | {"list_length": 3})
    # Five right answers are as good as all for recall-5.
    gold = [[letter] for letter in "bcdefghij"]
    found = list_figures("b, c, d, e, f, x", gold)
    assert (found["list_recall"], found["list_recall_5"]) == pytest.approx((5 / 9, 1.0))
    assert found["list_f1_5"] == pytest.approx(2 * (5 / 6) / (5 / 6 + 1))
    assert list_figures("", gold)["list_f1"] == 0.0
    item = Item("q", "which?", answer_sets=(("x",), ("y",)))
    figures = {name: part(name, item, "x, z") for name in LISTS}
    assert figures == dict.fromkeys(LISTS, (0.5, 1.0)) | {"list_length": (2.0, 1.0)}
    assert (part("list_f1_5", item, None), part("list_length", item, None)) == (
        (0.0, 1.0),
        None,
    )


REFERENCES = (
    "The cat sat. The dog barked loudly.",
    "It rained all day in the old town.",
)


def test_rouge_by_hand():
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    # Longest common subsequence "the cat" of 4 and 3 words: P = 2/4, R = 2/3, F = 4/7.
    assert rouge_l("the big cat lies", ["the cat sat", "a dog"]) == pytest.approx(4 / 7)
    assert rouge_l("", ["the cat sat"]) == rouge_lsum("", REFERENCES) == 0.0
    # The summary level does not mind the order of sentences; one subsequence over the whole text does.
    swapped = "The dog barked loudly. The cat sat."
    assert rouge_lsum(swapped, REFERENCES) == 1.0
    assert rouge_l(swapped, REFERENCES) == pytest.approx(4 / 7)
    # Of the reference's 7 words the union over its sentences finds "the cat" and "the dog": 4 of 7; 5 words are said.
    found = rouge_lsum("The cat lies. The dog.", REFERENCES[:1])
    assert found == pytest.approx(2 * (4 / 5) * (4 / 7) / (4 / 5 + 4 / 7))


def test_defect_30_three_of_four_questions_retrieved_is_three_quarters():
    read = Output("x", read=("p1",), retrieved=True)
    in_vain = Output("x", retrieved=True)
    assert (
        ratio([part("retrieval_rate", SHORT, o) for o in (read, read, read, in_vain)])
        == 0.75
    )

    # Effort is a mean over answers and leaves failures out.
    outputs = [
        Output("x", usage={"prompt_tokens": 10}),
        Output("x", usage={"prompt_tokens": 30}),
        None,
    ]
    assert ratio([part("prompt_tokens", SHORT, output) for output in outputs]) == 20.0


def test_recall_and_ndcg_by_hand():
    ranking = ["a", "x", "b", "y", "c"]
    assert [recall_at(ranking, {"a", "b", "z"}, k) for k in (1, 3)] == pytest.approx(
        [1 / 3, 2 / 3]
    )
    assert (recall_at([], {"a"}, 5), recall_at(ranking, set(), 5)) == (0.0, None)
    # Gains 3, 0, 1 at ranks 1 to 3, ideal 3, 2, 1.
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg_at(["a", "x", "c"], {"a": 3, "b": 2, "c": 1}, 3) == pytest.approx(
        (3 + 1 / 2) / ideal
    )
    assert (ndcg_at(["x"], {"a": 1}, 3), ndcg_at(["x"], {"a": 0}, 3)) == (0.0, None)
    item = Item("q", "who?", gold=frozenset({"b", "z"}))
    output = Output("x", read=("a", "b"), retrieved=True)
    # of what the model was shown
    assert part("retrieval_recall@2", item, output) == (
        0.5,
        1.0,
    )
    assert part("retrieval_recall@2", NO_ANSWER, output) is None
    # A passage named twice counts once.
    assert recall_at(["a", "a", "b"], {"a", "b"}, 2) == 1.0
    assert ndcg_at(["a", "a"], {"a": 1, "b": 1}, 2) == pytest.approx(
        1 / (1 + 1 / math.log2(3))
    )
    with pytest.raises(ValueError, match="k=0"):
        recall_at(["a"], {"a"}, 0)


def test_both_agree_with_trec_eval():
    measures = pytest.importorskip("ir_measures")
    rng = random.Random(5)
    documents = [f"d{i}" for i in range(30)]
    gains = {
        f"q{n}": {
            one: rng.randint(0, 3) for one in rng.sample(documents, rng.randint(1, 12))
        }
        for n in range(40)
    }
    ranked = {query: rng.sample(documents, rng.randint(1, 25)) for query in gains}
    run = {
        query: {one: 100.0 - rank for rank, one in enumerate(ranking)}
        for query, ranking in ranked.items()
    }
    wanted = [
        measures.parse_measure(f"{name}@{k}")
        for name in ("R", "nDCG")
        for k in (1, 5, 10, 20)
    ]
    results = list(measures.iter_calc(wanted, gains, run))
    assert len(results) == 40 * 8
    for found in results:
        own, k = gains[found.query_id], found.measure.params["cutoff"]
        figure, gold = (
            (recall_at, [d for d in own if own[d]])
            if found.measure.NAME == "R"
            else (ndcg_at, own)
        )
        # its digits
        assert (figure(ranked[found.query_id], gold, k) or 0.0) == pytest.approx(
            found.value, abs=1e-4
        )


ITEMS = (SHORT, SEVERAL, LETTERS, LONG, NO_ANSWER, BARE)
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "metrics.md").read_text(
    encoding="utf-8"
)


@pytest.mark.parametrize(
    "names, message",
    [
        (
            ["accurracy"],
            r"unknown metric 'accurracy'; did you mean accuracy\? All are in docs/",
        ),
        (["retrieval_recall@K"], "unknown metric 'retrieval_recall@K'"),
        (["retrieval_recall@0"], "at least 1, such as retrieval_recall@5"),
        (["f1", "f1"], "f1 is named twice"),
        ([], "no metric"),
        *(
            (
                [name],
                f"metric {name} needs .*; compute it on the finished run: selfrag eval",
            )
            for name in JUDGED
        ),
    ],
)
def test_errors_name_what_is_known(names, message):
    with refused(message):
        metrics(names)


def test_a_broken_package_of_metrics_and_a_name_given_twice_are_refused(
    monkeypatch,
):
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group: [EntryPoint("gone", "no_such_metrics", group)],
    )
    registry.known.cache_clear()
    with refused(
        r"no_such_metrics",
    ):
        get_metric("contains")
    with pytest.raises(ValueError, match="there is a metric contains already"):
        registry.metric("contains")(lambda item, output: 1.0)


def test_no_metric_returns_nan_in_silence():
    with pytest.raises(ValueError, match="broken of item 'q' is"):
        Metric("broken", lambda item, output: (math.nan, 1.0)).part(SHORT, Output("x"))
    assert ratio([None, (0.0, 0.0)]) is ratio([]) is None


@given(
    st.text(alphabet="abcAB .,[]12\n\x1b\ud800", max_size=20),
    st.lists(st.sampled_from(["p1", "p2", "p9"]), unique=True, max_size=3),
)
def test_no_metric_raises_or_leaves_its_range_for_what_a_model_writes(text, cited):
    output = Output(
        text,
        tuple(cited),
        tuple(cited),
        bool(cited),
        ((text, cited[0] if cited else None),),
    )
    for item in ITEMS:
        for one in METRICS.values():
            found = one.part(item, output)
            assert found is None or (
                math.isfinite(found[0]) and math.isfinite(found[1])
            )
            assert (
                found is None
                or one.unit == "count"
                or 0 <= found[0] <= max(found[1], 0)
            )
            one.part(item, None)


def test_every_metric_is_on_the_page_and_listed(
    capsys,
):
    assert main(["eval", "metrics"]) == 0
    shown = capsys.readouterr().out
    assert [
        name
        for name in (*METRICS, *PARAMETRIC, *JUDGED)
        if name not in shown or f"`{name}`" not in PAGE
    ] == []
