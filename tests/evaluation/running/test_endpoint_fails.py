"""An endpoint that refuses one question and dies midway: the rest goes on, nothing is lost, the end is the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from answering_server import AnsweringServer
from scripted_run import BROKEN, FILE, ITEMS, job, start

from selfrag.engines.http import HTTPConfig, HTTPEngine
from selfrag.errors import EngineError
from selfrag.evaluation.records import read_records
from selfrag.evaluation.runner import run


def over_http(folder: Path, server: AnsweringServer) -> dict[str, int]:
    config = HTTPConfig(server.url, vocab_size=2_000_000, max_concurrency=4, retries=1, backoff=0.01)
    engine = HTTPEngine.load(config)
    try:
        return run(job(folder), [FILE], lambda: engine)["set"]
    finally:
        engine.close()


def outcomes(folder: Path) -> list[tuple[str, str | None, bool]]:
    records = read_records(folder / "set.jsonl")
    return [(record["id"], record.get("text"), record["error"] is None) for record in records]


def test_an_endpoint_that_dies_midway_costs_nothing_but_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    server = AnsweringServer(most=25)
    with pytest.raises(EngineError) as caught:
        over_http(folder, server)
    server.stop()
    assert str(server.port) in str(caught.value)
    assert "\n" not in str(caught.value)
    kept = [json.loads(line)["record"]["id"] for line in (folder / "set.log.jsonl").read_bytes().splitlines()]
    assert 15 <= len(set(kept)) == len(kept) <= 25
    assert not (folder / "set.jsonl").exists()

    again = AnsweringServer(most=1000)
    found = over_http(folder, again)
    again.stop()
    assert 1000 - again.left <= len(ITEMS) - len(kept) + 3  # what was answered before is not asked again
    assert (found["items"], found["failed"]) == (len(ITEMS), 1)
    start(tmp_path / "whole")
    assert outcomes(folder) == outcomes(tmp_path / "whole")
    (broken,) = (record for record in read_records(folder / "set.jsonl") if record["error"])
    assert ITEMS[int(broken["id"][1:])].instruction == BROKEN
    assert "500" in broken["error"]
