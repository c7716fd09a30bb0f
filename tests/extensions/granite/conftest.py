"""Helpers of the intrinsics' tests are importable; a tiny chat model."""

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
