"""Benchmarks measure what they say: the same work, the same answers, counted right. Speeds are not judged here."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from refusals import refused

sys.path.append(str(Path(__file__).parents[1] / "training"))

from lettered import Letters
from trained import ROWS, config, write

from retrieval.passage import Passage
from scripts.benchmarks.speed import training
from scripts.benchmarks.speed.rivals import MISSING, Recording, watched
from scripts.benchmarks.speed.timing import Run, Work, answer_all, least_tokens, race
from scripts.benchmarks.speed.workload import Item, read_items
from selfrag.common.jsonl import write_jsonl
from selfrag.decoding.policy import Decoding
from selfrag.engines.scripted import ScriptedEngine, ScriptedReply
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary

EOS = 2
VOCABULARY = Vocabulary({token: 50_000 + i for i, token in enumerate(TOKENS)}, EOS)
ID, PROMPTING = VOCABULARY.ids, Prompting(Letters(), VOCABULARY)


def test_ways_run_in_turn_and_every_second_round_backwards():
    order = []

    def way(name, seconds):
        def run():
            order.append(name)
            return Run(seconds, ("text",), Work())

        return run

    series = race(
        {"a": way("a", 1.0), "b": way("b", 2.0)}, 3, lambda: order.append("-")
    )
    assert "".join(order) == "-a-b-b-a-a-b"
    assert series["b"].seconds == (2.0, 2.0, 2.0)


def row(count):
    passages = [
        {"id": f"p{k}", "title": "T", "text": f"Text {k}."} for k in range(count)
    ]
    record = {
        "task": "short_qa",
        "instruction": "Who?",
        "answers": ["Answer"],
        "gold_passage_ids": ["p0"],
    }
    return record | {"passages": passages}


def test_items_are_the_first_rows_with_their_first_passages(tmp_path):
    file = tmp_path / "q.jsonl"
    write_jsonl(file, [row(3), row(3), row(1), {"passages": []}])
    assert [len(item.passages) for item in read_items(file, 2, 2)] == [2, 2]
    for count, message in (
        (3, "has 1 passages, but 2 are wanted"),
        (4, r"q\.jsonl:4: a benchmark row needs"),
    ):
        with refused(message):
            read_items(file, count, 2)


def reply(request):
    """`Hi.` and retrieval, with a hallucinated passage behind; after the second passage `Ho.` and the end."""
    first = request.prompt_ids.count(VOCABULARY.paragraph_open) == 1
    tail = (
        (ID["[Retrieval]"], ord("x"), ord("y"), EOS)
        if first
        else (ID["[Utility:5]"], EOS)
    )
    return ScriptedReply(
        (
            ID["[Relevant]"],
            *map(ord, "Hi." if first else "Ho."),
            ID["[Fully supported]"],
            *tail,
        )
    )


def test_a_recording_changes_nothing_and_holds_every_request():
    items = [
        Item("q?", (Passage("a", "A text"), Passage("b", "B text"))),
        Item("r?", (Passage("a", "A text"),)),
    ]
    recording = Recording(ScriptedEngine(reply, EOS))
    ours = answer_all(
        items,
        PROMPTING,
        Decoding(mode="always", max_segments=2, segment_tokens=20),
        recording,
    )
    assert ours.texts == ("Hi. Ho.", "Hi. Ho.")
    assert len(recording.requests) == ours.work.requests
    assert (
        sum(len(request.prompt_ids) for request in recording.requests)
        == ours.work.prompt_tokens
    )


def test_what_counts_by_hand():
    assert watched({5: SimpleNamespace(logprob=-0.5)}, (5, 6)) == [-0.5, MISSING]
    # 1 2 3 is computed once, then 4, 5 and 6 behind it, and 9
    prompts = [(1, 2, 3, 4), (9,), (1, 2, 3, 5, 6), (1, 2, 3)]
    assert least_tokens(prompts) == 7
    assert least_tokens(prompts, 2) == 13 - 2 - 2


@pytest.mark.slow
def test_every_trainer_sees_the_same_rows_and_has_the_same_losses(tmp_path):
    rows = write(
        tmp_path / "rows.jsonl",
        [replace(source, id=f"{source.id}{n}") for n in range(3) for source in ROWS][
            :8
        ],
    )
    base = tiny.save_llama(tmp_path / "base", reflection=False, tie=True)
    settings = config(epochs=1, learning_rate=2e-3, precision="fp32")
    contest = training.TrainingContest(
        rows, base, rows_per_step=2, steps=4, warm=1, config=settings
    )
    ours, plain = (training.train(system, contest) for system in training.SYSTEMS)
    assert ours["tokens/step"] == plain["tokens/step"]
    for name in ("first loss", "last loss"):
        assert ours[name] == pytest.approx(plain[name], rel=1e-4)
    with refused("8 rows"):
        training.train(
            list(training.SYSTEMS)[-1], replace(contest, rows_per_step=3, steps=3)
        )
