"""The default model on this machine: whole, and made only once. Downloads it the first time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from selfrag.cli.checks.checkpoint import check_checkpoint
from selfrag.demo import encoder_path, index_path, model_path

pytestmark = pytest.mark.demo


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for must be there: pip reaches nothing."""
    model_path(), encoder_path(), index_path()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")


def test_the_checkpoint_has_every_reflection_token_trained() -> None:
    folder = model_path()
    findings = list(check_checkpoint("demo", folder))
    assert [finding for finding in findings if finding.status != "ok"] == []


def test_nothing_is_made_twice(no_network: None) -> None:
    def state(folder: Path) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}

    before = [state(path()) for path in (model_path, encoder_path, index_path)]
    assert before == [state(path()) for path in (model_path, encoder_path, index_path)]


def test_the_index_finds_what_it_should() -> None:
    from retrieval import open_index

    (found,) = open_index(index_path(), encoder_path())(["Who discovered radium and polonium?"], 5)
    assert any("Curie" in passage.title for passage in found)
