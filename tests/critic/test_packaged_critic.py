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
    made = {
        "adapter_config.json",
        "adapter_model.safetensors",
        "critic.json",
        "reflection.json",
        "training.json",
    }
    assert files.keys() == made | {"README.md"}
    for name in files.keys() - {"adapter_model.safetensors"}:
        written = files[name].read_text(encoding="utf-8")
        assert re.search(r"(?<![\w./:<])/\w+/", written) is None, "a place of a machine"
    told = {one.partition(":")[0] for one in fingerprint("demo").split()}
    assert told == made - {"training.json"}
    data = {
        ".safetensors",
        ".json",
        ".md",
        ".toml",
        ".yaml",
        ".html",
        ".js",
        ".css",
        ".svg",
    }
    root = Path(__file__).parents[2]
    found = [
        path
        for name in ("selfrag", "critic", "retrieval")
        for path in (root / name).rglob("*")
    ]
    assert (
        sum(path.stat().st_size for path in found if path.suffix in data) < 25 * 10**6
    )


@pytest.mark.demo
def test_the_packaged_critic_judges_what_any_critic_should():
    curie = Passage(
        "a", "Radium was discovered by Marie and Pierre Curie in 1898.", "Radium"
    )
    tea = Passage(
        "b", "Green tea is made of leaves that have not been fermented.", "Green tea"
    )
    cases = [
        Case.of("IsRel", "Who discovered radium?", evidence=curie),
        Case.of("IsRel", "Who discovered radium?", evidence=tea),
        Case.of("Retrieve", "Add 17 and 25.", output="42"),
    ]
    assert resolve_critic("demo") == critic_path() != model_path()
    assert (critic_path() / "critic.json").read_bytes() == (
        ADAPTER / "critic.json"
    ).read_bytes()
    with load_critic("demo", "transformers") as critic:
        found = critic.judge(cases)
    assert [judgment.label for judgment in found] == [
        "Relevant",
        "Irrelevant",
        "No Retrieval",
    ]
    assert all(judgment.coverage > 0.9 for judgment in found)
