"""Progress where there is no terminal: plain lines with what is done, how it goes and the time left."""

import pytest

from selfrag.common import progress
from selfrag.common.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_come_at_the_first_unit_every_half_minute_and_at_the_end(clock, capsys):
    with Progress("training", "step", 104, 4, quiet=0) as run:
        for _ in range(100):
            clock[0] += 2.0
            run.advance(note="loss 1.5, 400 tokens/s")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: step 5 of 104, loss 1.5, 400 tokens/s, 3 minutes left"
    assert (
        lines[1] == "training: step 20 of 104, loss 1.5, 400 tokens/s, 3 minutes left"
    )
    assert lines[-1] == "training: step 104 of 104, loss 1.5, 400 tokens/s, 0 s left"
    assert len(lines) == 8
    assert [progress.duration(seconds) for seconds in (0.2, 75, 9000)] == [
        "0 s",
        "75 s",
        "2.5 hours",
    ]


def test_what_was_done_before_does_not_count_for_the_time_left(clock, capsys):
    with Progress("interpret", "reply", 100, quiet=0) as run:
        run.skip(90)
        clock[0] += 10.0
        run.advance(5, "k5")
    assert capsys.readouterr().err == "interpret: reply 95 of 100, k5, 10 s left\n"


def test_a_short_run_says_nothing_and_an_endless_one_has_no_end(clock, capsys):
    for total, seconds in ((3, 9.0), (None, 20.0)):
        with Progress("augmenting", "pair", total) as run:
            for _ in range(3):
                clock[0] += seconds
                run.advance()
    assert capsys.readouterr().err == "augmenting: pair 2\n"
    with Progress("augmenting", "pair", 1, show=False, quiet=0) as run:
        run.advance()
    assert capsys.readouterr().err == ""
