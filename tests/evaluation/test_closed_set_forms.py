"""Closed sets asked with their options and by letters, or bare and by the options' texts: reading, prompts, scores."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_run import data_file as write
from written import EOS, FIRST_CHARACTER, LIMITS, PROMPTING, Characters, seen

from selfrag.decoding.driver import Answered, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Generate
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.errors import UserError
from selfrag.evaluation.baselines import Chat, FineTuned, Untuned
from selfrag.evaluation.comparison import compare, read_runs
from selfrag.evaluation.items import Form, Item, choices, in_form, output_of
from selfrag.evaluation.metrics.answers import option_accuracy
from selfrag.evaluation.presets import Given
from selfrag.evaluation.records import items_of
from selfrag.evaluation.runner import Run, run
from selfrag.evaluation.systems import Reflective, System
from selfrag.evaluation.task import CLOSED
from selfrag.evaluation.task_files import read_task

CODEC = Characters()
CHAT = Chat(tuple(CODEC.encode("<user>")), tuple(CODEC.encode("<bot>")), "test")
SYSTEMS: tuple[System, ...] = (
    Untuned(CODEC, CHAT, EOS, 1),
    FineTuned(PROMPTING, 0),
    FineTuned(PROMPTING, 1),
    Reflective(PROMPTING, Decoding(mode="never")),
)
ROW = {
    "id": "c",
    "task": "multiple_choice",
    "instruction": "Choose the letter.\n\n## Input:\n\nWhich is it?\nA: ab\nB: abcd\nC: x",
    "answers": ["B", "abcd"],
    "label": "B",
    "options": ["ab", "abcd", "x"],
}
TRUTH = ROW | {"id": "t", "instruction": "Is it so?", "label": "true", "options": ["true", "false"]}
TABLE = {"": {"a": 0.5, "x": 0.2}, "a": {"b": 0.8}, "ab": {"c": 0.8, "</s>": 0.2}, "abc": {"d": 0.5}}
"""Probabilities of the next character: ab 0.08, abcd 0.16, x 0.2; per character abcd is the best by far."""


def item(form: Form = "texts", **changes: Any) -> Item:
    query = "Which is it?\nA: ab\nB: abcd\nC: x"
    listed = Item("c", f"Choose the letter.\n\n## Input:\n\n{query}", None, label="B", query=query)
    return in_form(replace(listed, options=("ab", "abcd", "x"), **changes), form)


def spelled(table: dict[str, dict[str, float]]) -> Any:
    def reply(request: Generate) -> Reply:
        asked = seen(request.prompt_ids)
        path = asked.rpartition("<bot>")[2] if "<bot>" in asked else asked.rpartition("### Response:\n")[2]
        for shown in ("[No Retrieval]", "[Retrieval]", "<d1>"):
            path = path.removeprefix(shown)
        row = {EOS if k == "</s>" else FIRST_CHARACTER + ord(k): p for k, p in table.get(path, {}).items()}
        return Reply((FIRST_CHARACTER,), {0: {FIRST_CHARACTER: 0.01, **dict.fromkeys(request.watch_ids, 1e-9), **row}})

    return reply


def answered(one: System, asked: Item, table: dict[str, dict[str, float]] = TABLE) -> tuple[Any, ScriptedEngine]:
    engine = ScriptedEngine(spelled(table), EOS, limits=LIMITS)
    (event,) = [e for e in drive([one.decoder(asked, CLOSED)], engine, None) if isinstance(e, Answered)]
    return event.answer, engine


@pytest.mark.parametrize("one", SYSTEMS)
def test_every_system_scores_the_texts_by_character_after_the_bare_question(one: System) -> None:
    found, engine = answered(one, item())
    assert found.text == "abcd"
    logs = [math.log(0.08) / 2, math.log(0.16) / 4, math.log(0.2)]
    weights = [math.exp(log * 7 / 3) for log in logs]  # seven characters in three options
    likelihoods = [node.likelihood for node in found.trace.nodes]
    assert likelihoods == pytest.approx([weight / math.fsum(weights) for weight in weights], rel=1e-4)
    assert option_accuracy(item(), output_of(found)) == 1
    assert not any("A: ab" in seen(r.prompt_ids) or "Choose" in seen(r.prompt_ids) for r in engine.requests)


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, "Which is it?"),
        ({"question": "What is it?"}, "What is it?"),
        ({"label": "2", "instruction": "Which is it?\r\n1) ab\r\n2) abcd\r\n3) x"}, "Which is it?"),
        ({"instruction": "A: ab\nB: abcd\nC: x"}, "A: ab\nB: abcd\nC: x"),  # nothing else to ask
        ({"options": ["abcd", "ab", "x"], "label": "A"}, "Which is it?\nA: ab\nB: abcd\nC: x"),  # not those options
    ],
)
def test_the_question_is_taken_from_the_fields(tmp_path: Path, changes: dict[str, Any], asked: str) -> None:
    (found,) = read_task(write(tmp_path, ROW | changes), form="texts").items
    assert (found.instruction, found.query, found.label, found.cloze) == (asked, asked, "abcd", True)


def test_a_published_question_is_asked_without_the_words_of_its_protocol(tmp_path: Path) -> None:
    offered = {"text": ["no", "yes"], "label": ["1", "2"]}
    asked = {"id": "a", "question": "Which?", "choices": offered, "answerKey": "2", "ctxs": [{"text": "t"}]}
    path = write(tmp_path, asked)
    (found,) = read_task(Given.parse(f"arc-challenge/official={path}"), form="texts").items
    assert (found.instruction, found.label, choices(found).surfaces) == ("Which?", "yes", ("no", "yes"))
    assert len(found.passages) == 1


def start(folder: Path, data: Path, form: Form) -> None:
    def engine() -> ScriptedEngine:
        return ScriptedEngine(spelled(TABLE | {"": {"a": 0.5, "B": 0.2}}), EOS, limits=LIMITS)

    run(Run(FineTuned(PROMPTING, 0), {"name": folder.name}, folder), [read_task(data, form=form)], engine)


def test_the_form_is_part_of_a_run(tmp_path: Path) -> None:
    data, texts, letters = write(tmp_path, ROW), tmp_path / "by-text", tmp_path / "by-letter"
    start(texts, data, "texts")
    start(letters, data, "letters")
    settings = json.loads((texts / "manifest.json").read_text())["files"]["set"]["settings"]
    assert settings["choices"] == "texts"
    assert "choices" not in json.loads((letters / "manifest.json").read_text())["files"]["set"]["settings"]
    record = json.loads((texts / "set.jsonl").read_text())
    assert (record["text"], record["scores"]["accuracy"]) == ("abcd", [1.0, 1])
    assert items_of(texts, "set")["c"].instruction == "Which is it?"
    start(letters, data, "letters")  # the same again continues
    with pytest.raises(UserError, match="holds a run with another choices"):
        start(letters, data, "texts")
    (table,) = compare(read_runs([texts, letters])).tables
    said = "questions were asked without their options, whose texts were scored"
    assert f"by-text: {said}" in table.notes


def test_options_that_are_their_own_labels_are_the_same_in_both_forms(tmp_path: Path) -> None:
    data = write(tmp_path, TRUTH)
    assert read_task(data, form="texts").items == read_task(data).items
    start(tmp_path / "run", data, "letters")
    start(tmp_path / "run", data, "texts")  # the same run, which is done
