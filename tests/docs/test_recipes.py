"""The recipes of CONTRIBUTING.md, followed literally: as a package of somebody else that pip has installed."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from selfrag import Passage, SelfRAG, UserError
from selfrag.cli.main import main
from selfrag.engines import load_engine
from selfrag.evaluation.metrics import registry

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(
    re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```', TEXT, flags=re.M | re.S)
)
ROW = {"question": "How hot is green tea brewed?", "answers": ["80 degrees"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the recipes' modules and a .dist-info, first on the path."""
    info = tmp_path / "house_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: house-parts\nVersion: 1.0\n"
    )
    points = ""
    for name, body in FILES.items():
        if name.endswith(".py"):
            (tmp_path / name).write_text(body)
        else:
            for group, entry_points in tomllib.loads(body)["project"][
                "entry-points"
            ].items():
                points += f"[{group}]\n" + "".join(
                    f"{key} = {value}\n" for key, value in entry_points.items()
                )
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "METRICS", dict(registry.METRICS))
    registry.known.cache_clear()
    yield tmp_path
    registry.known.cache_clear()
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture
def model(folder: Path) -> str:
    return str(tiny.save_llama(folder / "llama"))


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.engine
def test_a_retriever_a_metric_and_a_task(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "quiz.jsonl").write_text(json.dumps(ROW) + "\n")
    row = {
        "id": "1",
        "task": "short_qa",
        "instruction": "Who?",
        "answers": ["Ann"],
        "metrics": ["question_marks"],
    }
    (folder / "own.jsonl").write_text(json.dumps(row) + "\n")
    common = [
        "--model",
        model,
        "--engine",
        "transformers",
        "--retriever",
        "notes",
        "--found",
        "1",
    ]
    common += ["-o", "runs", "--system", "selfrag-always"]
    assert main(["eval", "run", "pub-quiz=quiz.jsonl", "own.jsonl", *common]) == 0
    run = folder / "runs" / "selfrag-always"
    assert json.loads((run / "pub-quiz.jsonl").read_text())["read"] == ["tea"]
    assert "notes" in (run / "manifest.json").read_text()
    assert "question_marks" in json.loads((run / "own.jsonl").read_text())["scores"]
    shown(capsys)
    assert main(["eval", "tasks"]) == 0
    assert "pub-quiz" in shown(capsys)


@pytest.mark.engine
def test_an_intrinsic(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.save_llama(folder / "chat", reflection=False, context=2048)
    (path / "chat_template.jinja").write_text(
        "{% for turn in messages %}<|im_start|>{{ turn.content }}{% endfor %}"
    )
    words = ["on_topic", "Who wrote Faust?", "--passage", "Faust is a play by Goethe."]
    assert (
        main(["judge", *words, "--model", str(path), "--engine", "transformers"]) == 0
    )
    assert "answerable" in shown(capsys)


@pytest.mark.engine
def test_an_engine(model: str) -> None:
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
def test_a_system_and_a_judge(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "more.py").write_text(MORE)
    points = folder / "house_parts-1.0.dist-info" / "entry_points.txt"
    added = "[selfrag.systems]\ncareful = more:careful\n[selfrag.judges]\nstrict = more:STRICT\n"
    points.write_text(points.read_text() + added)
    assert main(["eval", "systems"]) == 0
    assert "of another package" in shown(capsys)
    row = {
        "id": "1",
        "task": "short_qa",
        "instruction": "Who?",
        "answers": ["Ann"],
        "passages": [],
    }
    (folder / "own.jsonl").write_text(json.dumps(row) + "\n")
    common = ["--model", model, "--engine", "transformers", "-o", "runs"]
    assert main(["eval", "run", "own.jsonl", "--system", "careful", *common]) == 0
    assert (folder / "runs" / "careful" / "own.jsonl").exists()
    with SelfRAG.from_pretrained(
        model, engine="transformers", judges=["strict"]
    ) as rag:
        passages = [Passage("1", "Ann was first.")]
        answer = rag.generate(
            "Who?",
            evidence=passages,
            mode="always",
            max_segments=1,
            judges=["strict=issup>=0.5"],
        )
    assert [node.status for node in answer.trace.nodes] == ["forbidden"]
    with pytest.raises(UserError, match=r"unknown .*'lenient'"):
        SelfRAG.from_pretrained(model, engine="transformers", judges=["lenient"])
    sys.modules.pop("more", None)
