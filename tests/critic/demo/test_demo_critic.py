"""The critic of the package: found by name everywhere, small, and able to tell what it was trained to tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from critic.baselines import fingerprint
from critic.cases import Case
from critic.demo import ADAPTER, critic_path
from critic.student.judge import load_critic, resolve_critic
from retrieval.passage import Passage
from selfrag.demo import model_path

PACKAGES = ("selfrag", "critic", "retrieval")
DATA = {".safetensors", ".json", ".md", ".toml", ".yaml", ".html", ".js", ".css", ".svg"}
MOST_BYTES = 25 * 10**6
FILES = {
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "critic.json",
    "reflection.json",
    "training.json",
}


def test_it_is_whole_and_all_package_data_stays_small() -> None:
    assert {path.name for path in ADAPTER.iterdir()} == FILES
    root = Path(__file__).parents[3]
    found = [path for package in PACKAGES for path in (root / package).rglob("*") if path.suffix in DATA]
    assert sum(path.stat().st_size for path in found) < MOST_BYTES
    for path in ADAPTER.iterdir():
        if path.suffix in {".md", ".json"}:
            assert re.search(r"(?<![\w./:<])/\w+/", path.read_text(encoding="utf-8")) is None, "a place of a machine"
    assert "adapter_model.safetensors:" in fingerprint("demo")
    assert "critic.json:" in fingerprint("demo")
    assert "README.md" not in fingerprint("demo")


@pytest.mark.demo
def test_it_judges_what_any_critic_should() -> None:
    curie = Passage("a", "Radium was discovered by Marie and Pierre Curie in 1898.", "Radium")
    tea = Passage("b", "Green tea is made of leaves that have not been fermented.", "Green tea")
    question = "Who discovered radium?"
    cases = [
        Case("IsRel", question, evidence=curie),
        Case("IsRel", question, evidence=tea),
        Case("Retrieve", "Add 17 and 25.", output="42"),
    ]
    assert resolve_critic("demo") == critic_path() != model_path()
    assert (critic_path() / "critic.json").read_bytes() == (ADAPTER / "critic.json").read_bytes()
    with load_critic("demo", "transformers") as critic:
        found = critic.judge(cases)
    assert [judgment.label for judgment in found] == ["Relevant", "Irrelevant", "No Retrieval"]
    assert all(judgment.coverage > 0.9 for judgment in found)
