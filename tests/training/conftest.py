"""What tests of training share: a tiny base and a few rows; `lettered` and `trained` can be imported from here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import tiny
from trained import config, write

from selfrag.training.job import trained
from selfrag.training.run import rows_of


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory):
    return tiny.save_llama(
        tmp_path_factory.mktemp("base") / "m", reflection=False, tie=True
    )


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "rows.jsonl")


@pytest.fixture
def learn(base_dir, rows, tmp_path):
    """Train on the rows into a folder of the test, by the loop, or with a scale by the Trainer; give the trainee."""

    def run(place="run", scale=None, *, start=None, **changes):
        chosen, here = config(**changes), tmp_path / place
        return trained(
            rows_of(rows, chosen), base_dir, here, chosen, scale, start=start
        ).trainee

    return run
