"""A whole evaluation on a tiny chat model and its own adapters, by the command."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from selfrag.cli.main import main
from selfrag.training.intrinsics.job import AdapterJob, run
from selfrag.training.intrinsics.presets import RowSelection, preset
from selfrag.training.settings import Lora, Reach


@pytest.fixture(scope="module")
def adapters(data, chat_llama, tmp_path_factory):
    out = tmp_path_factory.mktemp("adapters")
    small = {"lora": Lora(8, 8), "reach": Reach(token_rows=False), "max_steps": 1, "max_length": 2000}
    for name in ("answerability", "uncertainty"):
        config = replace(preset("demo", name).config(), **small)
        run(AdapterJob(name, data, chat_llama, out / name, config, RowSelection(held_out=0.2)))
    return out


@pytest.mark.engine
def test_the_command_measures_what_there_is(data, chat_llama, adapters, tmp_path, capsys):
    command = ["eval", "intrinsics", "--model", str(chat_llama), "--data", str(data), "--engine", "transformers"]
    command += ["--adapters", str(adapters), "--limit", "3", "--shots", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for title in (
        "Rewrites against people's (3",
        "Certainty, after the answer (3",
        "Hallucinated responses",
        "Answerability, all rows (3)",
        "Citations against annotated ones (3",
        "Published: Table 8",
        "Published: tables 2 to 4, MT-RAG, standalone",
    ):
        assert title in printed
    out = tmp_path / "out"
    figures = json.loads((out / "figures.json").read_text())
    assert set(figures["figures"]["answerability"]) == {"majority", "adapter", "untrained", "prompted"}
    assert set(figures["figures"]["citation_generation"]) == {
        "first sentence", "most words in common", "untrained", "prompted",
    }  # fmt: skip
    assert "always the training accuracy" in figures["figures"]["uncertainty"]
    assert set(figures["manifest"]["adapters"]) == {"answerability", "uncertainty"}
    assert len(json.loads((out / "items.json").read_text())["answerability"]) == 3
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "report.md").read_text().count("###") > 10


@pytest.mark.engine
def test_flows_search_and_abstain(data, chat_llama, adapters, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    titles = ["Weimar", "Berlin", "Faust", "Hamburg", "Leipzig", "Jena"]
    lines = [{"id": f"p{at}", "title": one, "text": f"{one} is a thing."} for at, one in enumerate(titles)]
    (corpus / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    queries = [{"id": f"q{at}", "text": f"What is {one}?", "split": "dev"} for at, one in enumerate(titles)]
    (corpus / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    (corpus / "qrels.tsv").write_text("h\n" + "".join(f"q{at}\tp{at}\t1\n" for at in range(len(titles))))
    command = ["eval", "intrinsics", "--model", str(chat_llama), "--data", str(data), "--engine", "transformers"]
    command += ["--adapters", str(adapters), "--corpus", str(corpus), "--only", "flows", "--flows", "4"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "Flows (4 questions, 5 passages)" in capsys.readouterr().out
    items = json.loads((tmp_path / "out" / "items.json").read_text())["flows"]
    assert len(items) == 16
    assert {one["flow"] for one in items} == {"none", "qr", "ad", "qr+ad"}
    assert all(one["error"] is None for one in items)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "poetry"], "nothing to measure under 'poetry'"),
        (["--only", "flows"], "give --corpus FOLDER"),
        (["--data", "nowhere"], "nowhere has no"),
        (["--adapters", "."], "holds no adapter"),
        (["--corpus", "."], "has no corpus.jsonl"),
    ],
)
def test_bad_input_is_one_line(arguments, said, data, chat_llama, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "intrinsics", "--model", str(chat_llama), "--data", str(data), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
