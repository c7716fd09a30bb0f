"""The recipes of the page on entry points, followed literally: as a package of somebody else that pip has installed."""

import json
import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import tiny
from json_files import read_json

from retrieval import documents
from selfrag import Passage, SelfRAG, UserError
from selfrag.engines import load_engine
from selfrag.evaluation.metrics import registry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/entry-points.md").read_text()
FILES = dict(
    re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```', PAGE, flags=re.M | re.S)
)
ROW = {"question": "How hot is green tea brewed?", "answers": ["80 degrees"]}


@pytest.fixture
def folder(install, tmp_path, monkeypatch):
    """A folder with the recipes' modules, installed."""
    points, modules = "", {}
    for name, text in FILES.items():
        if name.endswith(".py"):
            modules[name.removesuffix(".py")] = text
            continue
        tables = tomllib.loads(text)["project"]["entry-points"]
        for group, entry_points in tables.items():
            lines = [f"{key} = {value}\n" for key, value in entry_points.items()]
            points += f"[{group}]\n" + "".join(lines)
    install(points, **modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "METRICS", dict(registry.METRICS))
    found = (registry.known, documents.document_format, documents._registered)
    for cached in found:
        cached.cache_clear()
    yield tmp_path
    for cached in found:
        cached.cache_clear()
    for name in modules:
        sys.modules.pop(name, None)


@pytest.fixture
def model(folder):
    return tiny.save_llama(folder / "llama")


OWN = {"id": "1", "task": "short_qa", "instruction": "Who?", "answers": ["Ann"]}


def test_the_page_has_every_group_that_is_looked_up():
    table = PAGE.partition("## A retriever")[0]
    listed = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M)))
    )
    source = "".join(
        path.read_text()
        for package in ("selfrag", "retrieval", "critic")
        for path in (ROOT / package).rglob("*.py")
    )
    ours = {point.group for point in distribution("selfrag").entry_points}
    groups = {group for group in ours if group.startswith("selfrag.")}
    calls = r'(?:registered|names|with_entry_points)\(\s*"selfrag\.(\w+)"'
    constants = r'^(?:GROUP|[A-Z][A-Z_]*S|FAMILIES) = "selfrag\.(\w+)"$'
    looked_up = {*re.findall(calls, source), *re.findall(constants, source, re.M)}
    assert looked_up | {group.removeprefix("selfrag.") for group in groups} == listed


@pytest.mark.engine
def test_a_retriever_a_metric_and_a_task(folder, model, command):
    (folder / "quiz.jsonl").write_text(json.dumps(ROW) + "\n")
    row = OWN | {"metrics": ["question_marks"]}
    (folder / "own.jsonl").write_text(json.dumps(row) + "\n")
    line = "selfrag eval run pub-quiz=quiz.jsonl own.jsonl --model small -o runs"
    line += " --engine transformers --retriever notes --found 1"
    command(f"{line} --system selfrag-always")
    run = folder / "runs/selfrag-always"
    assert read_json(run / "pub-quiz.jsonl")["read"] == ["tea"]
    assert "notes" in (run / "manifest.json").read_text()
    assert "question_marks" in read_json(run / "own.jsonl")["scores"]
    assert "pub-quiz" in command("selfrag eval tasks")[0]


@pytest.mark.engine
def test_an_intrinsic(folder, command):
    path = tiny.save_llama(folder / "chat", reflection=False, context=2048)
    (path / "chat_template.jinja").write_text(
        "{% for turn in messages %}<|im_start|>{{ turn.content }}{% endfor %}"
    )
    line = f"selfrag judge on_topic Faust? --model {path} --engine transformers"
    assert "answerable" in command(line, "--passage", "Faust is a play.")[0]


@pytest.mark.engine
def test_an_engine_a_judge_and_a_policy(model, command):
    engine = load_engine("counting", model)
    with SelfRAG.from_pretrained(model, engine=engine, judges=["literal"]) as rag:
        evidence = [Passage("1", "Ann was first.")]
        options = {
            "mode": "always",
            "max_segments": 1,
            "judges": ["literal=issup>=0.5"],
        }
        answer = rag.generate("Who?", evidence=evidence, **options)
    assert [node.status for node in answer.trace.nodes] == ["forbidden"]
    assert engine.count >= 1
    line = "selfrag ask Who? --model small --engine counting --retriever notes"
    line += " --policy careful --load-judge literal --judge literal --segments 1"
    assert json.loads(command(f"{line} --json")[0])["question"] == "Who?"
    with pytest.raises(UserError, match="'lenient'"):
        SelfRAG.from_pretrained(model, engine="transformers", judges=["lenient"])


@pytest.mark.engine
def test_a_system_a_format_and_commands(folder, model, command):
    assert "of another package" in command("selfrag eval systems")[0]
    (folder / "own.jsonl").write_text(json.dumps(OWN | {"passages": []}) + "\n")
    options = "--system bare --model small --engine transformers -o runs"
    command(f"selfrag eval run own.jsonl {options}")
    assert (folder / "runs/bare/own.jsonl").exists()
    (folder / "app.log").write_text("10:00 started\n")
    command("selfrag index build app.log -o logs --encoder none")
    assert "10:00 started" in command("selfrag index search logs started")[0]
    for group in "|index |eval |train ".split("|"):
        assert command(f"selfrag {group}greet --name Ann")[0] == "hello Ann\n"
        assert json.loads(command(f"selfrag {group}greet --json")[0]) == {
            "hello": "you"
        }
