"""A retriever of one's own: a callable of a module or an entry point, documented on the page about running."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from selfrag import plugins
from selfrag.cli.main import main
from selfrag.errors import UserError
from selfrag.evaluation.records import items_of, read_manifest
from selfrag.evaluation.runner import Source

PAGE = (Path(__file__).parents[3] / "docs" / "experiments" / "running.md").read_text(encoding="utf-8")
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
    assert main(["eval", "run", "own.jsonl", "--retriever", name, "--out", "runs"]) != 0
    assert said.split(" ")[0] in capsys.readouterr().err


def test_an_index_beside_it_is_refused(own: Path) -> None:
    with pytest.raises(UserError, match="not both"):
        Source([own], index="demo", retriever="mysearch:search")


@pytest.mark.engine
def test_a_run_searches_with_it(own: Path, tiny_llama: Path) -> None:
    told = ["eval", "run", "own.jsonl", "--retriever", "mysearch:search", "--model", str(tiny_llama), "--out", "runs"]
    assert main([*told, "--engine", "transformers", "--system", "rag-1"]) == 0
    folder = own.parent / "runs" / "rag-1"
    assert read_manifest(folder)["files"]["own"]["settings"]["retriever"] == "mysearch:search"
    assert json.loads((folder / "own.jsonl").read_text())["read"] == ["1"]
    assert list(items_of(folder, "own")) == ["1"]
