"""`selfrag interpret` over a real `vllm serve`, as an endpoint and driven by token ids, says what a model here says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from served_vllm import ServedVLLM
from typer.testing import CliRunner

from selfrag.cli.main import app
from selfrag.experiments.self_interpretation.run import GridRun, read_grid

pytestmark = pytest.mark.engine

KEPT = ("id", "text", "answer", "explanation", "read", "cited", "finish", "scores", "error")
CELL = ("--cutoff=2", "--order=ranked", "--examples=0", "--prompt=direct")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Five questions, of which two are held out as demonstrations."""
    rows = [
        {
            "id": f"q{n}",
            "task": "list",
            "instruction": f"Which rivers are in land {n}?",
            "answers": [["Aare"], ["Inn"]],
            "passages": [
                {"id": f"p{n}{name}", "title": name, "text": f"{name} is in land {n}."} for name in ("Aare", "Inn")
            ],
        }
        for n in range(5)
    ]
    path = tmp_path / "rivers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def interpret(*words: object) -> str:
    done = CliRunner().invoke(app, ["interpret", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def replies(run: GridRun) -> list[dict[str, object]]:
    found = run.records(run.cells[0])
    assert found is not None
    # A server leaves out the first bytes of a character that the budget cut; the engine here shows that they are there.
    whole = [one | {key: one[key].rstrip("\ufffd") for key in ("text", "answer")} for one in found]
    return [{key: one[key] for key in KEPT} for one in whole]


@pytest.mark.parametrize("layout", ["plain", "selfrag"])
def test_a_server_and_a_process_give_the_same_replies(
    layout: str, questions: Path, vllm_server: ServedVLLM, tiny_llama: Path, tmp_path: Path
) -> None:
    plain = layout == "plain"  # a prompt as text goes to any endpoint, reflection tokens as ids to one's own server
    server = ("--endpoint", vllm_server.url) if plain else ("--engine", vllm_server.url)
    shared = ("--layout", layout, "--max-tokens", 8, *CELL)
    here, there = tmp_path / "here", tmp_path / "there"
    interpret("run", questions, "-o", here, "--model", tiny_llama, "--engine", "transformers", *shared)
    name = "tiny" if plain else tiny_llama
    page = interpret("run", questions, "-o", there, "--model", name, *server, *shared)
    assert "3 of 5 questions of rivers.jsonl" in page
    found = replies(read_grid(there))
    assert found == replies(read_grid(here))
    assert len(found) == 3
    assert all(one["error"] is None and one["text"] for one in found)

    page = interpret("faithfulness", there, "--model", name, *server)
    assert "Faithfulness: another order of the contexts" in page
    run = read_grid(there)
    asked = run.records(run.cells[0], "other-order")
    assert asked is not None
    assert [(one["error"], one["read"][0][-3:]) for one in asked] == [(None, "Inn")] * 3
