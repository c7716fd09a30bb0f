"""The critic of the package."""

import re
from pathlib import Path

import pytest

from critic.baselines import fingerprint
from critic.cases import Case
from critic.demo import ADAPTER, critic_path
from critic.student.judge import load_critic, resolve_critic
from retrieval.passage import Passage
from selfrag.demo import model_path


def test_the_packaged_critic_is_whole_and_all_package_data_stays_small():
    files = {path.name: path for path in ADAPTER.iterdir()}
    made = set(
        "adapter_config.json adapter_model.safetensors critic.json reflection.json training.json".split()
    )
    assert files.keys() == made | {"README.md"}
    for name in files.keys() - {"adapter_model.safetensors"}:
        written = files[name].read_text()
        assert re.search(r"(?<![\w./:<])/\w+/", written) is None, "a place of a machine"
    told = {one.partition(":")[0] for one in fingerprint("demo").split()}
    assert told == made - {"training.json"}
    data = set(".safetensors .json .md .toml .yaml .html .js .css .svg".split())
    root = Path(__file__).parents[2]
    found = (
        path
        for name in ("selfrag", "critic", "retrieval")
        for path in (root / name).rglob("*")
    )
    size = sum(path.stat().st_size for path in found if path.suffix in data)
    assert size < 25 * 10**6


@pytest.mark.demo
def test_the_packaged_critic_judges_what_any_critic_should():
    curie = "Radium was discovered by Marie and Pierre Curie in 1898."
    tea = "Green tea is made of leaves that have not been fermented."
    asked = "Who discovered radium?"
    cases = [
        Case.of("IsRel", asked, evidence=Passage("a", curie, "Radium")),
        Case.of("IsRel", asked, evidence=Passage("b", tea, "Green tea")),
        Case.of("Retrieve", "Add 17 and 25.", output="42"),
    ]
    assert resolve_critic("demo") == critic_path() != model_path()
    cards = [folder / "critic.json" for folder in (critic_path(), ADAPTER)]
    assert cards[0].read_bytes() == cards[1].read_bytes()
    with load_critic("demo", "transformers") as critic:
        found = critic.judge(cases)
    labels = [judgment.label for judgment in found]
    assert labels == ["Relevant", "Irrelevant", "No Retrieval"]
    assert all(judgment.coverage > 0.9 for judgment in found)
