"""The scripts of the critic and of D_gen on small data, and the critic of the package."""

import re
import shutil
from pathlib import Path

import pytest
from student_cases import labelled

from critic.baselines import fingerprint
from critic.cases import Case
from critic.demo import ADAPTER, critic_path
from critic.student.judge import load_critic, resolve_critic
from retrieval.passage import Passage
from selfrag.common.jsonl import write_jsonl
from selfrag.demo import model_path

CASE = next(row for row in labelled() if row.label == "Fully supported").as_dict() | {
    "id": "c1"
}
CLAIM = {
    "id": "p1",
    "dataset": "made",
    "kind": "fact_check",
    "instruction": "Is the following statement correct or not?\n\n## Input:\n\nThe Rhine flows through Basel.",
    "output": "true",
    "gold_passages": [{"title": "Rhine", "text": "Basel lies on the Rhine."}],
}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    write_jsonl(
        folder / "train" / "critic.jsonl",
        [CASE, {**CASE, "id": "c2", "label": "Partially supported"}],
    )
    write_jsonl(
        folder / "dev" / "critic.jsonl",
        [{**CASE, "id": "d1", "output": "Bergen rains."}],
    )
    write_jsonl(folder / "train" / "pairs.jsonl", [CLAIM])
    write_jsonl(folder / "intrinsics" / "hallucination_train.jsonl", [])
    return folder


def test_d_gen_is_priced_with_the_settings_of_the_script(data, tmp_path, run_script):
    (tmp_path / "out" / "index").mkdir(parents=True)
    arguments = (
        "--data",
        data,
        "--critic",
        "lexical",
        "--out",
        tmp_path / "out",
        "--",
        "--dry-run",
    )
    # Retrieve and IsUse; IsRel and IsSup of the gold passage, which joins, and of five that are searched.
    priced = "1 of 1 row with 1 sentence; at most 14 judgments and 1 search\n"
    assert run_script("make_dgen", *arguments)[:2] == (0, priced)
    shutil.rmtree(data / "train")
    code, _, error = run_script("make_dgen", *arguments)
    assert (code, str(data / "train") in error) == (2, True)


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
