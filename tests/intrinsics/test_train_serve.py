"""Training examples are, id for id, what inference sends to the engine. One codec and one renderer make both."""

from dataclasses import replace

import pytest
import tiny
from intrinsic_rows import CHAT, MAKERS

from selfrag.engines.base import Limits
from selfrag.engines.scripted import ScriptedEngine
from selfrag.intrinsics.contract import Message
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.intrinsics.rendering import Renderer
from selfrag.training.intrinsics.certainty import Answered, certainty_rows, parse_question
from selfrag.training.intrinsics.examples import example, make_examples
from selfrag.training.intrinsics.job import ADAPTERS, AdapterJob, RowSelection, prepared, teachable
from selfrag.training.intrinsics.rows import gold_of, parser
from selfrag.training.recipes import read_recipe
from selfrag.training.rows import MASKED


def renderer():
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = CHAT
    return Renderer.of(tokenizer)


RENDERER = renderer()


def rows(name):
    make = MAKERS[name][1]
    if name != "uncertainty":
        return [parser(name)(make(number)) for number in range(4)]
    answers = []
    for number in range(200):
        question = parse_question(make(number))
        logprobs = tuple(-0.1 * (1 + (at + number) % 4) for at in range(4))
        answers.append(Answered(question.id, question, logprobs))
    return certainty_rows(answers)[:4]


@pytest.mark.parametrize("name", MAKERS)
def test_examples_are_what_inference_asks(name):
    codec = teachable(name)
    executor = EngineExecutor(ScriptedEngine(lambda request: None, 2, Limits(4096, 100_000)), RENDERER)
    checked = 0
    for row in rows(name):
        request = codec.encode(row.state)
        asked = next(executor.steps([request]))
        sent = {one.prompt_ids for one in asked}
        for target in codec.teach(request, gold_of(row, request)):
            made = example(request, target, RENDERER)
            learned = [at for at, label in enumerate(made.labels) if label != MASKED]
            # Every prefix from which a token is learned is a prompt that inference scores or continues.
            assert made.ids[: learned[0]] in sent
            if request.slots:
                assert all(made.ids[:at] in sent for at in learned[:-1])
            assert learned == list(range(learned[0], len(made.ids)))
            assert made.ids[-1] == RENDERER.end_id
            assert RENDERER.text.decode([made.ids[at] for at in learned[:-1]]).strip() == target.text.strip()
            checked += 1
    assert checked >= 4


def test_long_rows_are_left_out_and_counted_never_cut():
    made = make_examples(rows("answerability"), teachable("answerability"), RENDERER, max_length=30)
    assert made.examples == ()
    assert made.skipped == {"longer than 30 tokens": 4}


def test_rows_that_give_no_example_are_out_before_any_are_chosen(tmp_path):
    given = [parser("answerability")(MAKERS["answerability"][1](number)) for number in range(40)]
    long = {row.id for at, row in enumerate(given) if at % 4 == 0}
    given = [
        replace(row, state=replace(row.state, messages=(Message("user", "why " * 400),))) if row.id in long else row
        for row in given
    ]
    config = read_recipe("demo", ADAPTERS, "answerability").config
    job = AdapterJob("answerability", tmp_path, tmp_path, tmp_path, config, RowSelection(most_rows=20))
    made = prepared(given, teachable("answerability"), RENDERER, job, {})
    assert made.facts["rows"] == made.facts["examples"] + made.facts["held_out"] == 20
    assert made.facts["skipped"] == {"longer than 420 tokens": 10, "not among the rows chosen": 10}


def test_targets_of_a_row_are_drawn_the_same_each_time():
    codec = teachable("hallucination_detection")
    taken = [
        make_examples(rows("hallucination_detection"), codec, RENDERER, max_length=4096, most_slots=1) for _ in range(2)
    ]
    assert len(taken[0].examples) == 4
    assert taken[0] == taken[1]
    whole = make_examples(rows("hallucination_detection"), codec, RENDERER, max_length=4096)
    assert set(taken[0].examples) < set(whole.examples)
