"""Timing arithmetic and the reading of questions."""

from __future__ import annotations

import json

import pytest

from selfrag.errors import UserError
from speed.timing import Run, Work, race
from speed.workload import read_items


def test_ways_run_in_turn_and_every_second_round_backwards():
    order: list[str] = []

    def way(name: str, seconds: float):
        def run() -> Run:
            order.append(name)
            return Run(seconds, ("text",), Work())

        return run

    series = race({"a": way("a", 1.0), "b": way("b", 2.0)}, 3, lambda: order.append("-"))
    assert "".join(order) == "-a-b-b-a-a-b"
    assert series["b"].seconds == (2.0, 2.0, 2.0)


def written(path, rows):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def row(count: int) -> dict:
    return {"instruction": "who?", "passages": [{"id": str(i), "title": "t", "text": "x"} for i in range(count)]}


def test_items_are_the_first_rows_with_their_first_passages(tmp_path):
    items = read_items(written(tmp_path / "q.jsonl", [row(3), row(3), row(1)]), 2, 2)
    assert [len(item.passages) for item in items] == [2, 2]
    for rows, message in (
        ([row(2)], "holds 1 questions, but 2 are wanted"),
        ([row(2), row(1)], "has 1 passages, but 2 are wanted"),
        ([row(2), {"passages": []}], r"q\.jsonl:2: a benchmark row needs instruction"),
    ):
        with pytest.raises(UserError, match=message):
            read_items(written(tmp_path / "q.jsonl", rows), 2, 2)
