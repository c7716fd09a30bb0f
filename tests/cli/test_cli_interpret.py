"""`selfrag interpret` from end to end: a tiny random model in process, an OpenAI-compatible server, wrong input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tiny

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "self_interpretation"))
sys.path.insert(0, str(Path(__file__).parents[1] / "intrinsics"))

from chat_server import ChatServer, said
from grid_world import first_context, item

from selfrag.cli.main import main
from selfrag.evaluation.records import read_records
from selfrag.experiments.self_interpretation.grid import Cell
from selfrag.experiments.self_interpretation.report import published
from selfrag.jsonl import write_jsonl

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SMALL = ["--cutoff", "2", "--order", "ranked", "--limit", "2", "--max-tokens", "8", "--engine", "transformers"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random chat model with reflection tokens."""
    path = tiny.save_llama(tmp_path_factory.mktemp("interpreted"), context=4096)
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.chat_template = TEMPLATE + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Six questions with several answers, in the schema of `eval` files."""
    rows = (
        {
            **{"id": one.id, "task": "list_qa", "instruction": one.query, "question": one.query},
            **{"type": "simple" if number % 2 else "composition", "split": "train" if number < 2 else "dev"},
            "answers": [list(forms) for forms in one.answer_sets],
            "passages": [passage.as_dict() for passage in one.passages],
            "gold_passage_ids": sorted(one.gold),
        }
        for number, one in enumerate(map(item, range(6)))
    )
    write_jsonl(tmp_path / "rivers.jsonl", rows)
    return tmp_path / "rivers.jsonl"


@pytest.mark.engine
def test_a_model_in_process_is_run_tested_and_judged(model, file, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    begin = ["interpret", "run", str(file), "-o", str(run), "--model", str(model), *SMALL]
    grid = [*begin, "--examples", "0", "--examples", "1", "--prompt", "basic", "--prompt", "counterfactual"]
    assert main([*grid, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("4 cells of 2 questions: 8 replies of at most ")
    assert not run.exists()
    assert main(grid) == 0
    shown, told = capsys.readouterr()
    assert "interpret: reply 8 of 8, k2-ranked-1-counterfactual, 0 s left" in told
    assert "### Prompt basic, beside Table 2" in shown
    assert "### Prompts against basic" in shown
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["identity"]["generator"]["layout"] == "selfrag"
    assert len(manifest["files"]) == 4
    records = read_records(run / "k2-ranked-1-counterfactual.jsonl")
    assert {record["id"] for record in records} < {"q2", "q3", "q4", "q5"}  # the first two are set aside
    assert all(record["error"] is None and record["usage"]["generated_tokens"] > 0 for record in records)

    before = {path.name: path.read_bytes() for path in run.glob("k2*.jsonl")}
    assert main(["interpret", "faithfulness", str(run), "--model", str(model), "--engine", "transformers"]) == 0
    assert "Faithfulness: another order of the contexts" in capsys.readouterr().out
    judged = ["interpret", "agree", str(run), "--model", str(model), "--engine", "transformers"]
    assert main([*judged, "--cell", "*-0-basic"]) == 0
    assert "Agreement with reflection tokens and citation intrinsic, prompt basic" in capsys.readouterr().out
    with monkeypatch.context() as patched:  # what is judged needs no model
        patched.setattr("selfrag.engines.select.load_engine", None)
        assert main([*judged, "--cell", "*-0-basic"]) == 0
    capsys.readouterr()
    (name,) = [path for path in run.glob("*.agreement.jsonl") if "log" not in path.name]
    for record in read_records(name):
        assert [context["id"] for context in record["contexts"]] == [f"p{record['id'][1:]}a", f"p{record['id'][1:]}b"]
        assert all(0 <= context["isrel"]["score"] <= 1 for context in record["contexts"])
    assert {path: (run / path).read_bytes() for path in before} == before

    page = tmp_path / "page.md"
    assert main(["interpret", "table", str(run), "--answers", "-o", str(page)]) == 0
    assert page.read_text() == capsys.readouterr().out
    assert "(the answer alone)" in page.read_text()
    assert main([*begin, "--prompt", "basic", "--max-tokens", "9"]) == 2
    assert "holds a run with another generator" in capsys.readouterr().err


def test_an_endpoint_answers_and_one_failure_is_counted(file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def answer(body):
        prompt = body["messages"][0]["content"]
        if "land 4" in prompt.rpartition("QUESTION:")[2]:
            return 500, {"error": {"message": "out of memory"}}
        return said(first_context(prompt))

    run = tmp_path / "run"
    grid = ["--examples", "2", "--cutoff", "5", "--order", "top-last", "--prompt", "basic", "--prompt", "direct"]
    with ChatServer(answer) as server:
        command = ["interpret", "run", str(file), "-o", str(run), "--endpoint", server.url, "--model", "gpt", *grid]
        assert main(command) == 0
        assert len(server.bodies) == 8
        assert all(body["temperature"] == 0 and body["model"] == "gpt" for body in server.bodies)
        assert all(body["messages"][0]["content"].count("(example)\nQUESTION:") == 2 for body in server.bodies)
        shown, complained = capsys.readouterr()
        assert "2 failed, such as q4 of k5-top-last-2-basic: " in complained
        assert "out of memory" in complained
        assert shown.startswith("# Self-interpretation: gpt\n\nendpoint, prompt as chat, 200 tokens at most; 4 of 4")
        assert "Failed, which counts as wrong: k5-top-last-2-basic 1." in shown
        assert "0.375" in shown  # three of four questions, one of two answers each
        assert f"{published()[Cell(5, 'top-last', 2, 'direct')]['answer_recall']:.3f}" in shown
        assert main([*command, "--retry-failed"]) == 0
        assert len(server.bodies) == 10
        test = ["interpret", "faithfulness", str(run), "--endpoint", server.url, "--model", "gpt", "--cell", "*-direct"]
        assert main(test) == 0
    manifest = (run / "manifest.json").read_text()
    assert "127.0.0.1" not in manifest
    assert "sk-secret" not in manifest
    records = read_records(run / "k5-top-last-2-direct.jsonl")
    assert [record["id"] for record in records] == ["q2", "q3", "q4", "q5"]
    assert records[2]["error"]
    assert records[0]["answer"] == "Brenta [p2b]."
    assert records[0]["explanation"] == "I think so because context p2b says it."
