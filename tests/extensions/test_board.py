"""The board of adaptive retrieval: killed and resumed, budgets, Holm, differences, the command."""

import json
import math
import socket

import numpy as np
import pytest
from plain_rivals import LoggingExecutor, Thinker, find
from refusals import refused
from scripted_run import data_file

from retrieval.passage import Passage
from selfrag.evaluation import runner
from selfrag.evaluation.comparison import Draws
from selfrag.evaluation.records import read_records
from selfrag.evaluation.runner import Model
from selfrag.evaluation.task_files import read_task
from selfrag.extensions.adaptive.board import (
    AVERAGE,
    DEVELOPMENT,
    SYSTEMS,
    Board,
    board_rows,
    halve,
    holm,
    p_value,
)
from selfrag.extensions.adaptive.commands import read_budget
from selfrag.reflection.requests import External, ExternalResult, Usage

NAMES = ("first", "second")


class KilledError(BaseException):
    """Stands for the death of the process."""


class Mortal(LoggingExecutor):
    """A random model whose process dies after some requests."""

    def __init__(self, life=math.inf):
        super().__init__(Thinker(7))
        self.life = life

    def steps(self, requests):
        self.life -= 1
        if self.life < 0:
            raise KilledError
        results = yield [External(self.serve, request) for request in requests]
        return [result.value for result in results]

    def serve(self, requests):
        served = []
        for request in requests:
            completion = self.complete(request)
            prompt = len(request.prompt.messages[0].content)
            usage = Usage(1, prompt, 0, completion.generated_tokens)
            served.append(ExternalResult(completion, usage))
        return served


@pytest.fixture
def model(monkeypatch):
    """A model at an address; gives what sets how long it lives."""
    executor = Mortal()
    about = (executor, "random", {"model": "random"})
    monkeypatch.setattr(runner, "chat_model", lambda _: about)
    monkeypatch.setattr(runner, "_reach", lambda _: runner.NoEngine(lambda: None))
    return executor


@pytest.fixture
def files(tmp_path):
    """Two files of questions about numbers, each with passages."""
    paths = []
    for name in NAMES:
        rows = []
        for number in range(10):
            question = f"Who saw {name} {number}?"
            hits = find([question], 5)[0] or [Passage("p", "Ann saw it.", "T")]
            row = {
                "id": f"{name}-{number}",
                "task": "short_qa",
                "answers": ["Ann", "Faust"],
            }
            row |= {
                "instruction": question,
                "passages": [hit.as_dict() for hit in hits],
            }
            rows.append(row)
        paths.append(data_file(tmp_path, *rows, name=f"{name}.jsonl"))
    return paths


def records(folder):
    """The finished records of all runs below a folder, by file."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*.jsonl"))
        if not path.name.endswith(".log.jsonl")
    }


def board_of(files, out, **options):
    """A board on the random model."""
    task_files = [read_task(path, searched=True) for path in files]
    return Board(Model("random@http://h"), task_files, out, {}, **options)


def test_a_board_that_is_killed_again_and_again_loses_nothing(model, files, tmp_path):
    options = {"retriever": find, "budget": 800}
    expected = board_of(files, tmp_path / "whole", **options).run()
    deaths = 0
    while True:
        model.life = 400
        try:
            settings = board_of(files, tmp_path / "killed", **options).run()
            break
        except KilledError:
            deaths += 1
    assert deaths >= 3
    assert settings == expected
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    assert len(records(tmp_path / "whole")) == 2 * (len(SYSTEMS) + 8 * 4)
    folders = [tmp_path / "killed" / name for name in SYSTEMS]
    tables = dict(board_rows(folders, NAMES, "always", settings))
    assert set(tables) == {*NAMES, AVERAGE}
    tokens = []
    for rows in tables.values():
        assert [row.system for row in rows] == list(SYSTEMS)
        by_name = {row.system: row for row in rows}
        always, flare = by_name["always"], by_name["flare"]
        assert by_name["never"].costs["searches"] == 0
        assert always.costs["searches"] == 1
        assert by_name["ircot"].tokens > always.tokens
        assert always.p is None
        assert flare.setting == settings["flare"] != ""
        assert min(rows, key=lambda row: row.tokens).on_front
        tokens.append(flare.costs["generated_tokens"])
    assert tokens[2] == pytest.approx((tokens[0] + tokens[1]) / 2)


def test_settings_are_chosen_on_items_that_are_not_reported(model, files, tmp_path):
    systems = ("always", "ircot")
    board = board_of(files, tmp_path / "b", retriever=find, budget=1, systems=systems)
    # nothing is within one token, so the cheapest setting is taken
    assert board.run() == {"always": "", "ircot": "steps=1"}
    for name in NAMES:
        tried, reported = (
            {
                record["id"]
                for record in read_records(tmp_path / "b" / folder / f"{name}.jsonl")
            }
            for folder in (f"{DEVELOPMENT}/ircot-steps-1", "ircot")
        )
        assert len(tried) == len(reported) == 5
        assert tried.isdisjoint(reported)
    row = {"id": "1", "task": "short_qa", "instruction": "Q", "answers": ["A"]}
    single = read_task(data_file(tmp_path, row, name="single.jsonl"))
    with refused("single has one item; --budget needs two or more"):
        halve(single, 0)


def test_all_systems_read_from_the_index_and_options_are_refused_first(files, tmp_path):
    def search(queries, k):
        return [[Passage("index", query, "I")][:k] for query in queries]

    board = board_of(files, tmp_path / "b", retriever=search)
    asked = [board._checked(file) for file in board.files]
    assert {p.id for f in asked for i in f.items for p in i.passages} == {"index"}
    own = board_of(files, tmp_path / "b")
    assert [own._checked(file) for file in own.files] == own.files
    row = {"id": "1", "task": "fact_check", "instruction": "Q", "answers": ["true"]}
    row |= {"label": "true", "options": ["true", "false"]}
    path = data_file(tmp_path, row, name="facts.jsonl")
    for systems in (("always", "selfrag"), ("crag",)):
        with refused(f"facts is multiple choice, .*: {systems[0]};"):
            board_of([path], tmp_path / "c", systems=systems).run()
    assert not (tmp_path / "c").exists()
    closed = board_of([path], tmp_path / "c", systems=("selfrag",))
    assert closed._checked(closed.files[0]) == closed.files[0]


def test_holm_and_p_values_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    samples = np.array([0.1] * 97 + [-0.1] * 2)
    assert p_value(Draws(0.1, samples, 10, 10)) == pytest.approx(2 * 3 / 100)
    assert p_value(Draws(0.0, np.zeros(99), 10, 10)) == 1.0


def test_the_command(model, files, tmp_path, command, refusal):
    paths = " ".join(map(str, files))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        line = f"selfrag eval board {paths} --out {tmp_path}/b --system never --system always --model "
        port = listening.getsockname()[1]
        out, _ = command(f"{line} random@http://127.0.0.1:{port} --json")
    assert set(json.loads(out)["files"]) == {*NAMES, AVERAGE}
    text = (tmp_path / "b" / "board.md").read_text()
    assert "| system | setting | score | difference | p (Holm) | front |" in text
    assert "<img" in (tmp_path / "b" / "board.html").read_text()
    said = refusal(f"{line} demo-base --against flare")
    assert "--against flare: the systems are never, always" in said
    for budget in ("100", "words=3", "tokens=0"):
        with refused("--budget"):
            read_budget(budget)
    assert read_budget("tokens=100") == 100
