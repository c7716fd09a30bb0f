"""End to end on the scripted engine: what a model says is known, so every figure is worked out by hand."""

from __future__ import annotations

import pytest
import tiny

from reflection_quality import Candidate, Measured, figures, five, measure
from retrieval.passage import Passage
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.evaluation.items import Item
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec

TOKENIZER = tiny.byte_level_tokenizer()
PROMPTING = Prompting(HFTextCodec(TOKENIZER), Vocabulary.from_tokenizer(TOKENIZER))
IDS = PROMPTING.vocabulary.ids


def _ids(text: str) -> tuple[int, ...]:
    return tuple(PROMPTING.codec.encode(text))


def _engine(relevance: dict[str, float], retrieval: dict[str, float]) -> ScriptedEngine:
    """Says of each passage how relevant it is and answers with its text; p(Retrieval) goes by the instruction."""

    def reply(request):
        prompt = TOKENIZER.decode(list(request.prompt_ids))
        if "</paragraph>" not in prompt:
            yes = next((p for text, p in retrieval.items() if text in prompt), 0.5)
            row = {IDS["[Retrieval]"]: yes, IDS["[No Retrieval]"]: 1 - yes}
            return Reply((*_ids("x"), PROMPTING.vocabulary.eos_id), {0: row})
        text = prompt.rpartition("</paragraph>")[0].rpartition("\n")[2]
        p = relevance[text]
        said = _ids(text) if p > 0.5 else _ids("I don't know.")
        first = IDS["[Relevant]"] if p > 0.5 else IDS["[Irrelevant]"]
        row = {IDS["[Relevant]"]: p, IDS["[Irrelevant]"]: 1 - p}
        return Reply((first, *said, PROMPTING.vocabulary.eos_id), {0: row})

    return ScriptedEngine(reply, PROMPTING.vocabulary.eos_id)


def _passages(*texts: str) -> tuple[Passage, ...]:
    return tuple(Passage(f"p{i}", text, "T") for i, text in enumerate(texts))


def test_figures_of_a_scripted_model() -> None:
    items = [
        Item("1", "one?", True, _passages("Paris", "Rome", "Oslo"), frozenset({"p0"}), ("paris",)),
        Item("2", "two?", True, _passages("Bern", "Kyiv"), frozenset({"p1"}), ("Kyiv",)),
        Item("3", "three?", True, _passages("Lima"), answerable=False),
        Item("4", "four?", True, _passages("Riga"), answerable=False),
        Item("5", "five?", True, _passages("Cairo"), answerable=True),
        Item("6", "Write!", False),
        Item("7", "Sum!", False),
    ]
    relevance = {"Paris": 0.9, "Rome": 0.8, "Oslo": 0.1, "Bern": 0.7, "Kyiv": 0.6, "Lima": 0.9, "Riga": 0.2}
    retrieval = {"one?": 0.9, "two?": 0.8, "three?": 0.7, "four?": 0.4, "five?": 0.6, "Write!": 0.1, "Sum!": 0.6}
    engine = _engine(relevance | {"Cairo": 0.8}, retrieval)
    done: list[int] = []
    measured = measure(items, PROMPTING, engine, progress=lambda: done.append(1))
    assert len(done) == 7
    assert measured[0].retrieval == pytest.approx(0.9, abs=1e-6)
    assert [c.text for c in measured[0].candidates] == ["Paris", "Rome", "I don't know."]
    assert [c.relevant for c in measured[0].candidates] == pytest.approx([0.9, 0.8, 0.1], abs=1e-6)

    found = figures(measured)
    values = {name: estimate.value for name, estimate in found.items()}
    assert values["retrieves_questions"] == pytest.approx(4 / 5)
    assert values["refrains_on_instructions"] == pytest.approx(1 / 2)
    # gold 0.9 and 0.6 against 0.8, 0.1 and 0.7: 3 + 1 of 6 pairs; within questions 2/2 and 0/1
    assert values["isrel_auc"] == pytest.approx(4 / 6)
    assert values["isrel_auc_within"] == pytest.approx(1 / 2)
    assert values["relevant_on_gold"] == 1.0
    assert values["relevant_on_other"] == pytest.approx((1 / 2 + 1) / 2)
    # question 2 prefers Bern, which is wrong
    assert values["contains_best_of_five"] == pytest.approx(1 / 2)
    assert values["contains_gold_passage"] == 1.0
    assert values["contains_any_of_five"] == 1.0
    assert values["taken_in"] == pytest.approx(1 / 2)
    assert values["answers_answerable"] == 1.0
    assert not {"accuracy", "failed", "isrel_undefined"} & set(values)


def test_the_decoding_is_one_segment_on_every_passage() -> None:
    engine = _engine({"Paris": 0.9, "Rome": 0.1}, {"who": 0.99})
    measure([Item("1", "who", True, _passages("Paris", "Rome"))], PROMPTING, engine)
    assert len(engine.requests) == 3  # the decision and two passages
    assert [request.max_tokens for request in engine.requests] == [1, 50, 50]


def test_an_item_that_fails_is_counted_and_does_not_stop_the_others() -> None:
    long = Item("1", "x" * 5000, True)
    measured = measure([long, Item("2", "who", True)], PROMPTING, _engine({}, {"who": 0.9}))
    assert measured[0].error is not None
    found = figures(measured)
    assert found["failed"].value == 0.5
    assert found["retrieves_questions"].n == 1


def test_closed_tasks_and_missing_judgments() -> None:
    claim = Item("1", "c", True, _passages("x"), label="true")
    measured = [
        Measured(claim, 0.9, (Candidate("p0", " True.", 1.0, None),)),
        Measured(claim, 0.9, (Candidate("p0", "false", 1.0, 0.9),)),
    ]
    found = figures(measured)
    assert found["accuracy"].value == 0.5
    assert found["isrel_undefined"].value == 0.5


def test_five_is_gold_and_the_first_four_others_in_a_seeded_order() -> None:
    item = Item("q", "who", True, _passages(*"abcdefgh"), frozenset({"p6"}))
    order = five(item, 0)
    assert order is not None
    assert sorted(order) == ["p0", "p1", "p2", "p3", "p6"]
    assert order == five(item, 0)
    assert len({tuple(five(item, seed) or ()) for seed in range(20)}) > 5
    assert five(Item("q", "who", True, _passages("a"), frozenset({"p9"})), 0) is None


def test_first_passage_follows_the_seeded_order_and_unusable_candidates_contain_nothing() -> None:
    item = Item("q", "who", True, _passages("a", "b"), frozenset({"p1"}), ("Kyiv",))
    order = five(item, 0) or []
    only = Candidate("p1", "Kyiv", 0.1, 0.9)
    values = figures([Measured(item, 0.9, (only,))])
    assert values["contains_first_passage"].value == float(order[0] == "p1")
    assert values["contains_best_of_five"].value == 1.0
