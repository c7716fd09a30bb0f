"""Metrics of answers by hand; the registry: names parse back, plug-ins join, nothing is NaN, the page names all."""

import math
import random
from fractions import Fraction
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_files import parse_table
from refusals import refused

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics import answers, registry
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


def figures(text):
    """Check rows of a metric, what is said, the gold answers and the value as a fraction."""
    for name, said, gold, value in parse_table(text):
        figure = getattr(answers, name)(said, gold)
        assert figure == pytest.approx(float(Fraction(value))), (name, said, gold)


def test_defect_28_the_official_match_is_there_under_its_own_name_and_the_other_reads_words():
    figures("""
official_match | D. Atoms | ["A"] | 1
contains | D. Atoms | ["A"] | 0
official_match | paris | ["Paris"] | 0
contains | It is paris. | ["London", "Paris"] | 1
""")


@pytest.mark.parametrize(
    "name",
    "official_match contains exact_match token_f1 rouge_l rouge_lsum".split(),
)
def test_defect_29_a_text_in_place_of_a_list_is_refused(name):
    for wrong in ("false", []):
        with refused("list"):
            getattr(answers, name)("true", wrong)
    for wrong in ("Paris", [], ["Paris"], [[]]):
        with refused("list of lists"):
            answers.str_em("Paris", wrong)


def test_abstentions():
    declined = "| . |I don't know.|I don’t know|I'm not sure.|I do not know the answer."
    assert all(map(abstains, declined.split("|")))
    given = "Paris|No|She did not know it then|unknown soldier"
    assert not any(map(abstains, given.split("|")))


def test_exact_match_and_token_f1():
    """Two words in common of 3 and 4: 2 * 2 / 7."""
    figures("""
exact_match | The Beatles! | ["beatles"] | 1
exact_match | The Beatles of Liverpool | ["beatles"] | 0
token_f1 | in New York | ["New York City today", "Paris"] | 4/7
token_f1 | york york | ["york"] | 2/3
token_f1 | the | ["the"] | 1
token_f1 | the | ["a"] | 0
token_f1 | "" | ["york"] | 0
""")


def test_an_answer_of_articles_only_is_compared_as_it_is_written():
    """Audit E3, defect 13."""
    figures("""
contains | Vitamin A | ["A"] | 1
contains | (A) | ["A"] | 1
contains | I like The The | ["The The"] | 1
contains | It is a vitamin | ["A"] | 0
contains | "" | ["A"] | 0
contains | Vitamin A | ["?"] | 0
exact_match | "" | ["A"] | 0
exact_match | A. | ["A"] | 1
exact_match | "" | ["?"] | 0
exact_match | "" | [""] | 1
token_f1 | "" | ["A"] | 0
token_f1 | Vitamin A | ["A"] | 2/3
str_em | Vitamin A | [["A"], ["C"]] | 1/2
str_em | a vitamin | [["A"]] | 0
""")
    assert answers.list_figures("A, B", [["A"], ["B"]])["list_f1"] == 1.0


@pytest.mark.parametrize(
    "text, answer",
    parse_table("""
应当用八十度的水。 | 八十度
サウジアラビアです。 | サウジアラビア
서울은 수도이다. | 서울
กรุงเทพเป็นเมืองหลวง | กรุงเทพ
Shaquille O’Neal played | O'Neal
from 1939–1945. | 1939-1945
from 1939—1945 | 1939–1945
in １９４５ | "1945"
the ﬁrst “Self-RAG” model | first "self‑rag"
Paris—the capital | Paris
Café | CAFÉ
Die Straße | STRASSE
هل ١٩٤٥؟ | "1945"
"""),
)
def test_the_same_words_in_another_script_or_typography_match(text, answer):
    """Field audit E4 and E5: Chinese, curly quotes, dashes and full width never matched."""
    assert answers.contains(text, [answer]) == answers.str_em(text, [[answer]]) == 1
    assert answers.exact_match(f"{answer}。", [answer]) == 1
    assert answers.token_f1(text, [answer]) > 0.3
    assert answers.contains("Something else", [answer]) == 0


@pytest.mark.parametrize(
    "text, item, option",
    parse_table("""
B | LETTERS | B
" (B) Mars" | LETTERS | B
B: Mars | LETTERS | B
**B.** | LETTERS | B
The answer is B. | LETTERS | B
It is Mars. | LETTERS | B
"Answer: B\\nbecause" | LETTERS | B
A dog | LETTERS | null
b | LETTERS | null
D. Atoms | LETTERS | null
Mars or Venus | LETTERS | null
"" | LETTERS | null
False. | CLAIM | "false"
TRUE | CLAIM | "true"
This statement is false | CLAIM | "false"
true or false? | CLAIM | null
"""),
)
def test_options_are_read(text, item, option):
    assert answers.read_option(text, globals()[item]) == option


OLD = Output.from_record(
    {"id": "q", "text": "I don't know.", "cited": [], "read": [], "retrieved": True}
    | {"segments": [], "usage": {}}
)


@pytest.mark.parametrize(
    "name, item, said, expected",
    [
        *parse_table("""
accuracy | LETTERS | B | 1
accuracy | LETTERS | B: Mars | 0
accuracy | LETTERS | null | 0
option_match | LETTERS | It is Mars. | 1
option_unread | LETTERS | Perhaps. | 1
option_unread | LETTERS | A | 0
option_unread | LETTERS | null | null
official_match | CLAIM | # REFUTES | 1
official_match | CLAIM | False | 0
official_match | SHORT | :Ann | 1
answer_recall | SHORT | by anne | 0
str_em | SHORT | by anne | 1
str_em | SEVERAL | NYC | 1/3
str_hit | BARE | x | null
long_form | LONG | the big cat lies | 4/7
long_form | NO_ANSWER | I don't know. | 1
long_form | NO_ANSWER | null | 0
answerability | NO_ANSWER | Because. | 0
answerability | LONG | I don't know. | 0
declines_unanswerable | NO_ANSWER | I don't know. | 1
answers_answerable | LONG | I don't know. | 0
words | BARE | Ann wrote [1][2] it. | 3
"""),
        # an abstention in words of its own, and a record of before
        *(
            ("declines_unanswerable", "NO_ANSWER", output, 1)
            for output in (Output("No entry.", abstained=True, reason="guardrail"), OLD)
        ),
    ],
)
def test_metrics_of_one_answer(name, item, said, expected):
    pytest.importorskip("rouge_score")
    share = expected and pytest.approx((float(Fraction(expected)), 1.0))
    assert part(name, globals()[item], said) == ((0.0, 1.0) if expected == 0 else share)


def test_three_readings_of_contains():
    """Letter for letter, a substring as in ALCE, and words; citation marks and, in ALCE, all but the first line go."""
    sets = '[["New York", "NYC"], ["The Beatles"], ["Café"]]'
    figures(f"""
answer_recall | It was NYC, where beatles lived [1]. | {sets} | 1/3
str_em | It was NYC, where beatles lived [1]. | {sets} | 2/3
answer_recall_words | It was NYC, where beatles lived [1]. | {sets} | 2/3
answer_recall | a nyctalope | {sets} | 0
answer_recall_words | a nyctalope | {sets} | 0
str_em | a nyctalope | {sets} | 1/3
str_em | "New [1] York\\nThe Beatles" | {sets} | 1/3
answer_recall_words | "New York.\\nThe Beatles" | {sets} | 2/3
str_em | "\\n\\n New York" | {sets} | 1/3
str_em | anything | [["The"], ["?"], [""]] | 0
answer_recall | anything | [[""]] | 0
str_hit | NYC, beatles, café | {sets} | 1
str_hit | NYC, beatles | {sets} | 0
""")


def test_qampari_by_hand():
    gold = [["Big Ben"], ["Nelson's Column", "the column of Nelson"], ["Hyde Park"]]
    found = answers.list_figures(
        "Big Ben, Column of Nelson, Eiffel Tower [1].\nHyde Park", gold
    )
    assert found == pytest.approx(
        dict.fromkeys(answers.LISTS, 2 / 3) | {"list_length": 3}
    )
    # Five right answers are as good as all for recall-5.
    gold = [[letter] for letter in "bcdefghij"]
    found = answers.list_figures("b, c, d, e, f, x", gold)
    assert (found["list_recall"], found["list_recall_5"]) == pytest.approx((5 / 9, 1.0))
    assert found["list_f1_5"] == pytest.approx(2 * (5 / 6) / (5 / 6 + 1))
    assert answers.list_figures("", gold)["list_f1"] == 0.0
    item = Item("q", "which?", answer_sets=(("x",), ("y",)))
    figures = {name: part(name, item, "x, z") for name in answers.LISTS}
    assert figures == dict.fromkeys(answers.LISTS, (0.5, 1.0)) | {
        "list_length": (2.0, 1.0)
    }
    assert part("list_f1_5", item, None) == (0.0, 1.0)
    assert part("list_length", item, None) is None


def test_rouge_by_hand():
    """Longest common subsequence "the cat" of 4 and 3 words: P = 2/4, R = 2/3, F = 4/7.

    The summary level does not mind the order of sentences; one subsequence over the whole text does. Of the 7 words of
    a reference the union over its sentences finds "the cat" and "the dog": 4 of 7; 5 words are said.
    """
    pytest.importorskip("rouge_score")
    two = "The cat sat. The dog barked loudly."
    gold = f'["{two}", "It rained all day in the old town."]'
    figures(f"""
rouge_l | the big cat lies | ["the cat sat", "a dog"] | 4/7
rouge_l | "" | ["the cat sat"] | 0
rouge_lsum | "" | {gold} | 0
rouge_lsum | The dog barked loudly. The cat sat. | {gold} | 1
rouge_l | The dog barked loudly. The cat sat. | {gold} | 4/7
rouge_lsum | The cat lies. The dog. | ["{two}"] | 2/3
""")


def test_defect_30_three_of_four_questions_retrieved_is_three_quarters():
    read = Output("x", read=("p1",), retrieved=True)
    outputs = [read, read, read, Output("x", retrieved=True)]
    assert ratio([part("retrieval_rate", SHORT, o) for o in outputs]) == 0.75
    # Effort is a mean over answers and leaves failures out.
    outputs = [Output("x", usage={"prompt_tokens": n}) for n in (10, 30)]
    assert ratio([part("prompt_tokens", SHORT, o) for o in [*outputs, None]]) == 20.0


def test_recall_and_ndcg_by_hand():
    ranking = "a x b y c".split()
    assert [recall_at(ranking, {"a", "b", "z"}, k) for k in (1, 3)] == pytest.approx(
        [1 / 3, 2 / 3]
    )
    assert recall_at([], {"a"}, 5) == 0.0
    assert recall_at(ranking, set(), 5) is None
    # Gains 3, 0, 1 at ranks 1 to 3, ideal 3, 2, 1.
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg_at(["a", "x", "c"], {"a": 3, "b": 2, "c": 1}, 3) == pytest.approx(
        (3 + 1 / 2) / ideal
    )
    assert ndcg_at(["x"], {"a": 1}, 3) == 0.0
    assert ndcg_at(["x"], {"a": 0}, 3) is None
    item = Item("q", "who?", gold=frozenset({"b", "z"}))
    output = Output("x", read=("a", "b"), retrieved=True)
    # of what the model was shown
    assert part("retrieval_recall@2", item, output) == (0.5, 1.0)
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
PAGE = (Path(__file__).parents[2] / "docs/guides/metrics.md").read_text(
    encoding="utf-8"
)


@pytest.mark.parametrize(
    "names, message",
    [
        *parse_table(r"""
["accurracy"] | unknown metric 'accurracy'; did you mean accuracy\? All are in docs/
["retrieval_recall@K"] | unknown metric 'retrieval_recall@K'
["retrieval_recall@0"] | at least 1, such as retrieval_recall@5
["f1", "f1"] | f1 is named twice
[] | no metric
"""),
        *(
            [[name], f"{name} needs .*; compute it on the finished run"]
            for name in JUDGED
        ),
    ],
)
def test_errors_name_what_is_known(names, message):
    with refused(message):
        metrics(names)


def test_a_broken_package_of_metrics_and_a_name_given_twice_are_refused(monkeypatch):
    point = EntryPoint("gone", "no_such_metrics", "selfrag.metrics")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    registry.known.cache_clear()
    with refused("no_such_metrics"):
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
    segment = (text, cited[0] if cited else None)
    output = Output(text, tuple(cited), tuple(cited), bool(cited), (segment,))
    for item in ITEMS:
        for one in METRICS.values():
            one.part(item, None)
            found = one.part(item, output)
            if found is not None:
                assert all(map(math.isfinite, found))
                assert one.unit == "count" or 0 <= found[0] <= max(found[1], 0)


def test_every_metric_is_on_the_page_and_listed(capsys):
    assert main(["eval", "metrics"]) == 0
    shown = capsys.readouterr().out
    for name in (*METRICS, *PARAMETRIC, *JUDGED):
        assert name in shown
        assert f"`{name}`" in PAGE
