"""The recipes of CONTRIBUTING.md, followed literally: as a package of somebody else that pip has installed."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import tiny
from json_files import read_json

from selfrag import Passage, SelfRAG, UserError
from selfrag.engines import load_engine
from selfrag.evaluation.metrics import registry

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(
    re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```', TEXT, flags=re.M | re.S)
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
    registry.known.cache_clear()
    yield tmp_path
    registry.known.cache_clear()
    for name in modules:
        sys.modules.pop(name, None)


@pytest.fixture
def model(folder):
    return tiny.save_llama(folder / "llama")


OWN = {"id": "1", "task": "short_qa", "instruction": "Who?", "answers": ["Ann"]}


@pytest.mark.engine
def test_a_retriever_a_metric_and_a_task(folder, model, command):
    (folder / "quiz.jsonl").write_text(json.dumps(ROW) + "\n")
    row = OWN | {"metrics": ["question_marks"]}
    (folder / "own.jsonl").write_text(json.dumps(row) + "\n")
    line = f"selfrag eval run pub-quiz=quiz.jsonl own.jsonl --model {model} -o runs"
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
def test_an_engine(model):
    engine = load_engine("counting", model)
    with SelfRAG.from_pretrained(model, engine=engine) as rag:
        rag.generate("Q", mode="never", max_segments=1)
    assert engine.count >= 1


MORE = """
from selfrag.evaluation.systems import named_system
from selfrag.judges.external import FunctionJudge
from selfrag.reflection.labels import ISSUP

def careful(tokenizer, settings):
    return named_system("selfrag-never", tokenizer, settings)

STRICT = FunctionJudge("strict", ISSUP, lambda states: [[0.0, 0.0, 1.0] for _ in states])
"""


@pytest.mark.engine
def test_a_system_and_a_judge(folder, model, command):
    (folder / "more.py").write_text(MORE)
    (points,) = folder.glob("*.dist-info/entry_points.txt")
    added = "[selfrag.systems]\ncareful = more:careful\n[selfrag.judges]\nstrict = more:STRICT\n"
    points.write_text(points.read_text() + added)
    assert "of another package" in command("selfrag eval systems")[0]
    (folder / "own.jsonl").write_text(json.dumps(OWN | {"passages": []}) + "\n")
    options = f"--system careful --model {model} --engine transformers -o runs"
    command(f"selfrag eval run own.jsonl {options}")
    assert (folder / "runs/careful/own.jsonl").exists()
    with SelfRAG.from_pretrained(
        model, engine="transformers", judges=["strict"]
    ) as rag:
        evidence = [Passage("1", "Ann was first.")]
        options = {"mode": "always", "max_segments": 1, "judges": ["strict=issup>=0.5"]}
        answer = rag.generate("Who?", evidence=evidence, **options)
    assert [node.status for node in answer.trace.nodes] == ["forbidden"]
    with pytest.raises(UserError, match="'lenient'"):
        SelfRAG.from_pretrained(model, engine="transformers", judges=["lenient"])
