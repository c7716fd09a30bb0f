"""What tests of training share: a tiny base and a few rows; `lettered` and `trained` can be imported from here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import tiny
from trained import write


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory):
    return tiny.save_llama(
        tmp_path_factory.mktemp("base") / "m", reflection=False, tie=True
    )


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "rows.jsonl")
