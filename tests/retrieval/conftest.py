"""The fixtures of `small_index`; each test runs in a folder of its own, and may name files there."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from small_index import animals, encoder, index, make_encoder, tiny_bert

__all__ = ["animals", "encoder", "index", "make_encoder", "tiny_bert"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
