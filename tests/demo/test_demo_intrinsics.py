"""Adapters of intrinsics that are shipped with the demo model: whole, small, and trained for that very model."""

from __future__ import annotations

import json
import re

import pytest

from selfrag.demo.intrinsics import adapter_paths
from selfrag.demo.model import model_path
from selfrag.engines.adapters import read_adapter
from selfrag.intrinsics.catalog import PAPER, AdapterCard, check_cards
from selfrag.intrinsics.model_library import Library
from selfrag.intrinsics.reflectors import adapters_of
from selfrag.training.journal import fingerprint

MOST_BYTES = 25 * 10**6
FILES = {"README.md", "adapter_config.json", "adapter_model.safetensors", "intrinsic.json", "training.json"}


def test_the_front_doors_take_what_is_shipped_and_nothing_else() -> None:
    names = list(PAPER)
    by_adapter = [f"{name}.adapter" for name in names]
    assert adapters_of(by_adapter, "demo") == {name: str(path) for name, path in adapter_paths().items()}
    assert set(adapters_of(names, "demo")) == {"query_rewrite", "uncertainty"}  # tokens judge the others
    assert adapters_of(names, "demo-base") == {}
    assert set(adapter_paths()) == set(names)


def test_they_are_whole_together_and_small() -> None:
    found = adapter_paths()
    assert set(found) == set(PAPER)
    for name, folder in found.items():
        assert {path.name for path in folder.iterdir()} == FILES
        assert read_adapter(name, folder).rank > 0  # nothing that vLLM would refuse
        assert AdapterCard.read(folder).intrinsic == name
    check_cards({name: str(folder) for name, folder in found.items()}, "chat")  # with today's prompts
    assert sum(path.stat().st_size for folder in found.values() for path in folder.iterdir()) < MOST_BYTES


def test_their_cards_name_no_place_of_a_machine() -> None:
    for folder in adapter_paths().values():
        for path in folder.iterdir():
            if path.suffix in {".md", ".json"}:
                text = path.read_text(encoding="utf-8")
                assert re.search(r"(?<![\w./:])/\w+/", text) is None, path


@pytest.mark.demo
def test_they_were_trained_for_this_demo_model() -> None:
    base = fingerprint(*sorted(model_path().glob("*.safetensors")))
    for name, folder in adapter_paths().items():
        run = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        assert run["inputs"]["base"] == base, f"{name}: scripts/train_intrinsics.py --base demo trains it again"


@pytest.mark.demo
def test_the_library_of_the_demo_model_judges_with_them() -> None:
    with Library.from_pretrained("demo", engine="transformers", max_model_len=1024) as library:
        assert set(library.adapters) == set(adapter_paths())
        passages = ["Radium was discovered by Marie and Pierre Curie in 1898."]
        judge = library["answerability.adapter"]
        for found in judge.batch(
            [judge.state(text, passages) for text in ("Who discovered radium?", "How old is tea?")]
        ):
            assert found.judgment is not None
            assert found.judgment.source == "adapter"
            assert found.judgment.coverage > 0.9  # an adapter writes labels
