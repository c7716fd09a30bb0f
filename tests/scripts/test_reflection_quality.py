"""The quality of reflection tokens: figures worked out by hand, rows of every schema, and one run on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from reflection_quality import Candidate, Measured, evaluate, figures, five, measure, read_rows
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.evaluation.items import Item
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec

TOKENIZER = tiny.byte_level_tokenizer()
PROMPTING = Prompting(HFTextCodec(TOKENIZER), Vocabulary.from_tokenizer(TOKENIZER))
IDS = PROMPTING.vocabulary.ids


def scripted(relevance: dict[str, float], retrieval: dict[str, float]) -> ScriptedEngine:
    """Says of each passage how relevant it is and answers with its text; p(Retrieval) goes by the instruction."""

    def reply(request):
        prompt = TOKENIZER.decode(list(request.prompt_ids))
        if "</paragraph>" not in prompt:
            yes = next((p for text, p in retrieval.items() if text in prompt), 0.5)
            row = {IDS["[Retrieval]"]: yes, IDS["[No Retrieval]"]: 1 - yes}
            return Reply((*PROMPTING.codec.encode("x"), PROMPTING.vocabulary.eos_id), {0: row})
        text = prompt.rpartition("</paragraph>")[0].rpartition("\n")[2]
        p = relevance[text]
        said = PROMPTING.codec.encode(text if p > 0.5 else "I don't know.")
        row = {IDS["[Relevant]"]: p, IDS["[Irrelevant]"]: 1 - p}
        return Reply((max(row, key=row.get), *said, PROMPTING.vocabulary.eos_id), {0: row})

    return ScriptedEngine(reply, PROMPTING.vocabulary.eos_id)


def passages(*texts: str) -> tuple[Passage, ...]:
    return tuple(Passage(f"p{i}", text, "T") for i, text in enumerate(texts))


def test_figures_of_a_scripted_model() -> None:
    items = [
        Item("1", "one?", True, passages("Paris", "Rome", "Oslo"), frozenset({"p0"}), ("paris",)),
        Item("2", "two?", True, passages("Bern", "Kyiv"), frozenset({"p1"}), ("Kyiv",)),
        Item("3", "three?", True, passages("Lima"), answerable=False),
        Item("4", "four?", True, passages("Riga"), answerable=False),
        Item("5", "five?", True, passages("Cairo"), answerable=True),
        Item("6", "Write!", False),
        Item("7", "Sum!", False),
        Item("8", "x" * 5000, None),
    ]
    relevance = {"Paris": 0.9, "Rome": 0.8, "Oslo": 0.1, "Bern": 0.7, "Kyiv": 0.6, "Lima": 0.9, "Riga": 0.2}
    retrieval = {"one?": 0.9, "two?": 0.8, "three?": 0.7, "four?": 0.4, "five?": 0.6, "Write!": 0.1, "Sum!": 0.6}
    engine = scripted(relevance | {"Cairo": 0.8}, retrieval)
    measured = measure(items, PROMPTING, engine)
    assert {request.max_tokens for request in engine.requests} == {1, 50}
    assert [c.text for c in measured[0].candidates] == ["Paris", "Rome", "I don't know."]
    assert measured[7].error is not None  # too long, and the others go on

    values = {name: estimate.value for name, estimate in figures(measured).items()}
    assert values["retrieves_questions"] == pytest.approx(4 / 5)
    assert values["refrains_on_instructions"] == pytest.approx(1 / 2)
    # gold 0.9 and 0.6 against 0.8, 0.1 and 0.7: 3 + 1 of 6 pairs; within questions 2/2 and 0/1
    assert values["isrel_auc"] == pytest.approx(4 / 6)
    assert values["isrel_auc_within"] == pytest.approx(1 / 2)
    assert values["relevant_on_gold"] == 1.0
    assert values["relevant_on_other"] == pytest.approx((1 / 2 + 1) / 2)
    # question 2 prefers Bern, which is wrong
    assert values["contains_best_of_five"] == pytest.approx(1 / 2)
    assert values["contains_gold_passage"] == values["contains_any_of_five"] == 1.0
    assert values["taken_in"] == pytest.approx(1 / 2)
    assert values["answers_answerable"] == 1.0
    assert values["failed"] == pytest.approx(1 / 8)

    item = Item("q", "who", True, passages(*"abcdefgh"), frozenset({"p6"}))
    assert sorted(five(item, 0) or ()) == ["p0", "p1", "p2", "p3", "p6"]  # gold and the first four others
    claim = Item("1", "c", True, passages("x"), label="true")
    said = [Candidate("p0", " True.", 1.0, None), Candidate("p0", "false", 1.0, 0.9)]
    found = figures([Measured(claim, 0.9, (one,)) for one in said])
    assert found["accuracy"].value == found["isrel_undefined"].value == 0.5


TASK = {
    **{"id": "q", "task": "short_qa", "instruction": "who?", "answers": ["me"], "gold_passage_ids": ["p1"]},
    "passages": [{"id": "p1", "title": "T", "text": "Body."}],
}


def written(folder: Path, *records: dict) -> Path:
    write_jsonl(folder / "items.jsonl", records)
    return folder / "items.jsonl"


def test_rows_of_every_schema(tmp_path: Path) -> None:
    fact = TASK | {"task": "fact_check", "label": "true", "options": ["true", "false"]}
    long_form = TASK | {"task": "long_form", "label": "unanswerable"}
    open_, closed, long = read_rows(written(tmp_path, TASK, fact, long_form))
    assert (open_.answers, open_.gold, open_.label, open_.needs_retrieval) == (("me",), {"p1"}, None, True)
    assert (closed.answers, closed.label, closed.answerable) == (None, "true", None)
    assert (long.answers, long.answerable, long.label) == (None, False, None)
    asked = {"conversation": [{"role": "user", "content": "who?"}], "documents": [{"doc_id": "d", "text": "B"}]}
    retrieve = {"group": "Retrieve", "label": "No Retrieval", "instruction": "Write."}
    rows = [
        {"id": "a", "label": "answerable"} | asked,
        {"id": "b", "kind": "instruction", "instruction": "Write."},
        {"id": "c", "kind": "short_qa", "instruction": "who?"},
        {"id": "d", "preceding": ""} | retrieve,
        {"id": "e", "preceding": "Before."} | retrieve,
        {"id": "g", "source": "s", "instruction": "Write.", "target": [{"token": "[No Retrieval]"}, {"text": "x"}]},
    ]
    found = read_rows(written(tmp_path, *rows))
    assert (found[0].answerable, found[0].passages[0].id) == (True, "d")
    assert [item.needs_retrieval for item in found] == [True, False, True, False, None, False]
    bad = TASK | {"task": "long_form", "label": "maybe"}
    with pytest.raises(UserError, match=r"items\.jsonl:2: .*answerable or unanswerable"):
        evaluate("no-model", [written(tmp_path, TASK, bad)])  # before a model is loaded
