"""Adapters of intrinsics that are shipped with the demo model: whole, small, and trained for that very model."""

from __future__ import annotations

import json
import re

import pytest

from selfrag import SelfRAG
from selfrag.demo.intrinsics import adapter_paths
from selfrag.demo.model import model_path
from selfrag.engines.adapters import read_adapter
from selfrag.errors import UserError
from selfrag.intrinsics.catalog import PAPER, AdapterCard, check_cards
from selfrag.intrinsics.execution.tokens import ScoreCalibrator, Weighing
from selfrag.intrinsics.model_library import Library
from selfrag.intrinsics.reflectors import adapters_of
from selfrag.loading import shipped_adapters, shipped_weights
from selfrag.training.journal import fingerprint

ADAPTED, LEARNED = {"query_rewrite"}, {"hallucination_detection", "uncertainty"}
MOST_BYTES = 25 * 10**6
FILES = {"README.md", "adapter_config.json", "adapter_model.safetensors", "intrinsic.json", "training.json"}


def test_the_front_doors_take_what_is_shipped_and_nothing_else() -> None:
    names = list(PAPER)
    assert adapters_of(names, "demo") == {name: str(path) for name, path in shipped_adapters("demo").items()}
    assert adapters_of(names, "demo-base") == {}
    assert set(shipped_adapters("demo")) == ADAPTED
    assert set(shipped_weights("demo")) == LEARNED
    assert set(adapter_paths()) == ADAPTED | LEARNED


def test_they_are_whole_together_and_small() -> None:
    found = shipped_adapters("demo")
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
    for name, folder in shipped_adapters("demo").items():
        run = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        assert run["inputs"]["base"] == base, f"{name}: scripts/train_intrinsics.py --base demo trains it again"
    learned = Weighing.read(shipped_weights("demo")["hallucination_detection"])
    assert learned.model == base, "scripts/learn_combined.py learns them again"
    assert ScoreCalibrator.read(shipped_weights("demo")["uncertainty"])(4.0) > 0.5


@pytest.mark.demo
def test_the_library_of_the_demo_model_judges_with_what_was_measured_best() -> None:
    with Library.from_pretrained("demo", engine="transformers", max_model_len=1024) as library:
        assert set(library.adapters) == ADAPTED
        judges = {name: library[name].execution for name in PAPER}
        assert judges == {
            "answerability": "tokens",
            "citation_generation": "overlap",
            "hallucination_detection": "combined",
            "query_rewrite": "adapter",
            "uncertainty": "tokens",
        }
        radium = "Radium was discovered by Marie and Pierre Curie in 1898."
        tea = "Green tea is brewed at 80 degrees."
        answerable = [library["answerability"]("Who discovered radium?", [text]) for text in (radium, tea)]
        assert [bool(found) for found in answerable] == [True, False]
        turns = [{"role": "user", "content": "Who discovered radium?"}]
        faithful = [
            library["hallucination_detection"]([*turns, {"role": "assistant", "content": said}], [radium])
            for said in ("Marie and Pierre Curie discovered radium.", "Goethe found it in Weimar.")
        ]
        assert [found.is_hallucinated for found in faithful] == [False, True]
        assert faithful[0].sentences[0].judgment.source == "combined"
        rewritten = library["query_rewrite"](turns)
        assert (rewritten.text, rewritten.execution) == ("Who discovered radium?", "adapter")


@pytest.mark.demo
def test_a_server_is_not_given_the_adapters_of_this_package() -> None:
    with pytest.raises(UserError, match="no server at"):
        SelfRAG.from_pretrained("demo", engine="http://127.0.0.1:9", intrinsics=["query_rewrite"], retries=0)
