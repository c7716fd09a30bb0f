"""docs/guides/running.md is executed: its names, its example, what a run leaves, a retriever of one's own."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from reproduction.steps import write_samples
from reproduction.table2 import ROWS
from selfrag import plugins
from selfrag.cli.main import main
from selfrag.errors import UserError
from selfrag.evaluation.presets import PRESETS
from selfrag.evaluation.runner import Source
from selfrag.evaluation.systems import SYSTEMS

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "running.md").read_text(encoding="utf-8")
(PYTHON,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_every_name_is_on_the_page() -> None:
    protocols = {name for one in PRESETS.values() for name in one.protocols}
    assert [name for name in (*PRESETS, *SYSTEMS, *protocols) if f"`{name}`" not in PAGE] == []
    assert f"the {len(ROWS)} rows of the paper's main table" in PAGE


@pytest.mark.engine
def test_its_example_runs(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    row = {"id": "1", "task": "short_qa", "instruction": "Who?", "answers": ["Ann"], "passages": []}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    write_samples(tmp_path)["asqa"].rename(tmp_path / "asqa.json")
    monkeypatch.chdir(tmp_path)
    assert PYTHON.count('Model("demo")') == 1  # the one thing that is not as on the page: a model of this machine
    code = PYTHON.replace('Model("demo")', f'Model({str(tiny_llama)!r}, "transformers")')
    exec(compile(code, "running.md", "exec", dont_inherit=True), {"__name__": "__docs__"})  # the point of this test
    assert capsys.readouterr().out == "1\n"
    files = {
        path.relative_to(tmp_path / "runs").as_posix() for path in (tmp_path / "runs").rglob("*") if path.is_file()
    }
    left = {"manifest.json", *(f"{name}{end}" for name in ("own", "asqa") for end in (".jsonl", ".log.jsonl"))}
    assert files == {f"{run}/{name}" for run in ("adaptive", "top-1") for name in left}


(EXAMPLE,) = re.findall(r"^```py\n(# mysearch\.py\n.*?)^```", PAGE, flags=re.M | re.S)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    row = {"id": "1", "task": "short_qa", "instruction": "Who?", "answers": ["Ann"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "mysearch.py").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "own.jsonl"
    sys.modules.pop("mysearch", None)


def test_items_without_passages_get_those_of_the_retriever(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source([own], found=3, retriever="mysearch:search")
    (file,) = source.load()
    assert [passage.text for passage in file.items[0].passages] == ["Ann was first."]
    assert source.settings() == {"retriever": "mysearch:search", "found": 3}
    point = metadata.EntryPoint("wiki", "mysearch:search", "selfrag.retrievers")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == point.group else [])
    assert Source([own], retriever="wiki").load()[0].items == file.items


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wiki", "no entry point 'wiki' of selfrag.retrievers"),
        ("nowhere_at_all:search", "the module cannot be imported"),
        ("mysearch:absent", "mysearch has no 'absent'"),
    ],
)
def test_an_unknown_one_is_one_line(own: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=said):
        Source([own], retriever=name).load()
    with pytest.raises(UserError, match="not both"):
        Source([own], index="demo", retriever=name)
    assert main(["eval", "run", "own.jsonl", "--retriever", name, "--out", "runs"]) != 0
    assert said.split(" ")[0] in capsys.readouterr().err
