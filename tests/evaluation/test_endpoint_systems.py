"""Baselines behind an endpoint: prompts word for word, a whole run by the command, and what an endpoint cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import ChatServer, said
from scripted_run import data_file

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.errors import UserError
from selfrag.evaluation.baselines import Prompted, endpoint_system
from selfrag.evaluation.items import Item
from selfrag.evaluation.presets import Given
from selfrag.evaluation.records import read_manifest, read_records
from selfrag.evaluation.task import SHORT

PASSAGES = (Passage("a", "He was born in Ulm. " + "More. " * 300, "Einstein"), Passage("b", "Ulm is a city.", ""))
ITEM = Item("q", "Where was Einstein born?", None, PASSAGES, answers=("Ulm",), references=("Ulm",), task="short_qa")


def test_prompts_word_for_word():
    published = Given.marked(Path(), "popqa/baseline").preset.task("baseline")
    assert Prompted(None, 0).prompt(ITEM, published) == "Where was Einstein born?"
    shown = "[1] Einstein He was born in Ulm.\n\n[2] Ulm is a city.\n\n"
    assert Prompted(None, 5, 6).prompt(ITEM, published) == f"{shown}Where was Einstein born?"
    own = Prompted(None, 1, 6).prompt(ITEM, SHORT)
    assert own.startswith(
        "Use these passages to answer the question.\n\n[1] Einstein He was born in Ulm.\n\nQuestion: "
    )
    assert own.endswith(f"\n\n{SHORT.hint}")


def test_passages_are_the_protocols():
    task = Given.marked(Path(), "asqa/baseline").preset.task("baseline")
    assert endpoint_system("rag", None, None, task).passages == 5
    assert endpoint_system("rag", None, {"passages": 2}, task).passages == 2
    assert endpoint_system("base", None).passages == 0
    with pytest.raises(UserError, match="selfrag-always needs a checkpoint; an endpoint runs base, rag, rag-1, rag-5"):
        endpoint_system("selfrag-always", None)
    with pytest.raises(UserError, match="--set beam"):
        endpoint_system("base", None, {"beam": 2})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three questions of which the server refuses one."""
    rows = [
        {"task": "short_qa", "id": f"q{n}", "instruction": f"Where is {n}?", "answers": ["Ulm"],
         "passages": [{"id": "a", "title": "T", "text": f"Text {n}."}]}
        for n in range(3)
    ]  # fmt: skip
    return data_file(tmp_path, *rows, name="short.jsonl")


def test_a_run_over_an_endpoint(file, tmp_path, capsys):
    def answer(body):
        asked = body["messages"][-1]["content"]
        if "Where is 1?" in asked:
            return 400, {"error": {"message": "no"}}
        return said("In Ulm." if "[1]" in asked else "Rome")

    with ChatServer(answer) as server:
        systems = ["--system", "base", "--system", "rag-1"]
        command = ["eval", "run", str(file), "--model", f"gpt@{server.url}/v1", *systems, "-o", str(tmp_path)]
        assert main(command) == 0
        asked = len(server.bodies)
        assert main(command) == 0  # all is recorded
        assert len(server.bodies) == asked
    assert {body["model"] for body in server.bodies} == {"gpt"}
    assert {body["temperature"] for body in server.bodies} == {0.0}
    identity = read_manifest(tmp_path / "rag-1")["identity"]
    assert (identity["engine"], identity["model"]) == ("endpoint", {"name": "gpt"})
    records = {one["id"]: one for one in read_records(tmp_path / "rag-1" / "short.jsonl")}
    assert (records["q0"]["text"], records["q0"]["cited"], records["q0"]["read"]) == ("In Ulm.", ["a"], ["a"])
    assert records["q0"]["usage"]["prompt_tokens"] == 7
    assert "no answer could be written" in records["q1"]["error"]
    assert [one["text"] for one in read_records(tmp_path / "base" / "short.jsonl") if not one["error"]] == ["Rome"] * 2


@pytest.mark.parametrize(
    ("more", "said_"),
    [
        (["--system", "base", "--engine", "vllm"], "leave the engine and its settings out"),
        (["--system", "base", "--ray", "local"], "leave --ray out"),
    ],
)
def test_what_an_endpoint_cannot_do_is_one_line(more, said_, file, tmp_path, capsys):
    command = ["eval", "run", str(file), "--model", "gpt@http://127.0.0.1:9/v1", "-o", str(tmp_path / "runs"), *more]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert said_ in error
    assert error.count("\n") == 1
