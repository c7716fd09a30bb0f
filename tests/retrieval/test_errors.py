"""What a missing package is answered with: the command that works where the package runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import retrieval.errors
from retrieval.errors import MissingExtraError, installing, require

ROOT = Path(retrieval.errors.__file__).parents[1]


def test_issue_19_the_advice_in_a_checkout_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(installing("train"))
    assert Path(words[0]).exists()
    assert str(ROOT) in " ".join(words)
    assert "train" in words[-1]
    monkeypatch.chdir(ROOT)
    assert str(ROOT) not in " ".join(shlex.split(installing("train"))[1:2])


def test_issue_19_elsewhere_it_asks_an_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(retrieval.errors, "__file__", str(tmp_path / "retrieval" / "errors.py"))
    assert installing("train") == "pip install 'selfrag[train]'"


def test_the_error_names_the_module_and_the_command() -> None:
    with pytest.raises(MissingExtraError, match=r"no_such_module is not installed; run: .*train"):
        require("no_such_module", extra="train")
