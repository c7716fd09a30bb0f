"""The data sets of adaptive retrieval: rows of FlashRAG and of their sources, official figures."""

import pytest
from scripted_run import data_file

from selfrag.evaluation.presets import Given
from selfrag.evaluation.task_files import read_task
from selfrag.extensions.adaptive.tasks import hotpot_f1

NAMES = ("hotpotqa", "wikimultihop", "musique", "bamboogle", "nq", "squad-open")


@pytest.mark.parametrize("name", [*NAMES, "triviaqa"])
def test_rows_of_flashrag_are_read(name, tmp_path):
    row = {"id": "test_0", "question": "Who painted Guernica?"}
    row |= {"golden_answers": ["Picasso", "Pablo Picasso"], "metadata": {"type": "x"}}
    path = data_file(tmp_path, row)
    file = read_task(Given.parse(f"{name}={path}"), searched=True)
    (item,) = file.items
    assert (item.id, item.answers) == ("test_0", ("Picasso", "Pablo Picasso"))
    assert (file.name, file.task.kind) == (name, "short")


def test_rows_of_the_data_sets_themselves_are_read(tmp_path):
    hotpot = {"_id": "5a", "question": "Is it so?", "answer": "yes", "context": []}
    nq = {"question": "who?", "answer": ["Ann", "A. Lee"]}
    for name, row, answers in (
        ("hotpotqa", hotpot, ("yes",)),
        ("nq", nq, ("Ann", "A. Lee")),
    ):
        path = data_file(tmp_path, row, name=f"{name}.jsonl")
        (item,) = read_task(Given.parse(f"{name}={path}"), searched=True).items
        assert item.answers == answers


@pytest.mark.parametrize(
    "text, answer, figure",
    [
        ("Yes.", "yes", 1),
        ("yes it is", "yes", 0),
        ("no", "yes", 0),
        ("no answer in Rome", "no answer", 2 / 3),
        ("Pablo Picasso", "Picasso", 2 / 3),
        ("the Rome", "Rome", 1),
    ],
)
def test_f1_of_hotpotqa(text, answer, figure):
    assert hotpot_f1(text, (answer,)) == pytest.approx(figure)
