"""The benchmark measures what it says: same rows, same losses, a process each. Speeds are not judged here."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import tiny
from lettered import passage, row
from trained import ROWS, config, write

from selfrag.errors import UserError
from speed.training import SYSTEMS, Contest, measure

pytestmark = pytest.mark.slow  # a benchmark: each measurement is a process that loads everything


@pytest.fixture(scope="module")
def contest(tmp_path_factory):
    home = tmp_path_factory.mktemp("contest")
    more = [
        row("[Retrieval]", passage("Snow is cold. " * n), "[Relevant]", "Cold.", instruction="Snow?", id=f"m{n}")
        for n in range(1, 6)
    ]
    rows = write(home / "rows.jsonl", [*ROWS, *more])
    base = tiny.save_llama(home / "base", reflection=False, tie=True)
    settings = config(epochs=1, learning_rate=2e-3, precision="fp32")
    return Contest(rows, base, rows_per_step=2, steps=4, warm=1, config=settings)


@pytest.fixture(scope="module")
def plain(contest):
    """What transformers' Trainer measures."""
    return measure("plain", contest)


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "plain"])
def test_every_system_sees_the_same_rows_and_has_the_same_losses(contest, plain, system):
    """Also in smaller batches, where a system has any."""
    if system == "trl":
        pytest.importorskip("trl", reason="trl is not installed: its losses are not compared")
    for rows_at_once in (contest.rows_at_once, 1) if system == "trl" else (contest.rows_at_once,):
        found = measure(system, replace(contest, rows_at_once=rows_at_once))
        assert len(found.losses) == 4
        assert found.tokens == plain.tokens
        assert found.losses == pytest.approx(plain.losses, rel=1e-4)
        assert found.losses[0] == pytest.approx(plain.losses[0], rel=1e-5)
        assert found.speed > 0


def test_a_measurement_that_cannot_be_is_one_line(contest):
    with pytest.raises(UserError, match="do not go evenly into 8 rows"):
        measure("plain", replace(contest, rows_per_step=3, steps=3))
    with pytest.raises(UserError, match="unknown system 'fast'"):
        measure("fast", contest)
    with ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(measure, "plain", contest)
        while not (children := multiprocessing.active_children()):
            assert not measuring.done()
        for child in children:
            child.kill()
        with pytest.raises(UserError, match="plain: its process was killed, as when memory runs out"):
            measuring.result()
