"""Environment variables are put back, whatever happened inside the block."""

import os

import pytest

from selfrag.engines.vllm import environment


def test_set_removed_and_restored(monkeypatch):
    monkeypatch.setenv("SELFRAG_A", "before")
    monkeypatch.setenv("SELFRAG_B", "stays")
    monkeypatch.delenv("SELFRAG_C", raising=False)
    with environment({"SELFRAG_A": "inside", "SELFRAG_B": None, "SELFRAG_C": "new"}):
        assert os.environ["SELFRAG_A"] == "inside"
        assert "SELFRAG_B" not in os.environ
        assert os.environ["SELFRAG_C"] == "new"
        os.environ["SELFRAG_C"] = "changed by the block"
    assert os.environ["SELFRAG_A"] == "before"
    assert os.environ["SELFRAG_B"] == "stays"
    assert "SELFRAG_C" not in os.environ


def test_restored_after_an_error(monkeypatch):
    monkeypatch.setenv("SELFRAG_A", "before")
    with pytest.raises(RuntimeError), environment({"SELFRAG_A": "inside"}):
        raise RuntimeError
    assert os.environ["SELFRAG_A"] == "before"
