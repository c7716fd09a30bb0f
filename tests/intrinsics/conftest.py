"""The helpers beside this file and those of the decoding tests are importable; a tiny chat model, rows of all kinds."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "decoding"))
sys.path.insert(0, str(Path(__file__).parent))

import intrinsic_rows
from intrinsic_rows import chat_llama as chat_llama


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder with training and development rows of all five."""
    return intrinsic_rows.write_data(tmp_path_factory.mktemp("data") / "intrinsics")
