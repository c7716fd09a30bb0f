"""Rows and a tiny chat model of the tests of training; makes `oracle` importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "intrinsics"))
sys.path.insert(0, str(Path(__file__).parent))

import intrinsic_rows


@pytest.fixture(scope="session")
def chat_llama(tmp_path_factory):
    """Directory of a tiny chat model."""
    return intrinsic_rows.save_chat_llama(tmp_path_factory.mktemp("chat") / "tiny-chat")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder with training and development rows of all five."""
    return intrinsic_rows.write_data(tmp_path_factory.mktemp("data") / "intrinsics", count=12)
