"""The commands `selfrag index ..`, driven as a user drives them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from selfrag.cli.index import app
from selfrag.cli.main import main
from selfrag.loading import load_retriever


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def said(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0
    return done.stdout


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("facts.jsonl").write_text('{"id": "bee", "title": "Bee", "text": "Bees make honey.", "year": 1}\n')
    Path("more.jsonl").write_text('{"id": "ant", "text": "Ants carry leaves."}\n')
    Path("guide.md").write_text("# Dogs\n\nA dog barks. A dog sleeps. " + "A dog eats a long dinner. " * 30)
    return ["facts.jsonl", "guide.md"]


def test_build_then_search(files, tiny_bert):
    built = said("build", *files, "-o", "index", "--encoder", tiny_bert, "--words", 50, "--overlap", 2)
    assert re.fullmatch(rf"\d+ passages in index, encoded by {tiny_bert.parent.name}/{tiny_bert.name}\n", built)
    shown = said("search", "index", "honey", "-k", 2)
    assert shown.count("\n") == 4
    assert re.match(r"1\. \[-?\d+\.\d{3}\] \S+  \w+\n   \w", shown)
    found = json.loads(said("search", "index", "honey", "-k", 3, "--json"))
    assert found["query"] == "honey"
    assert len(found["passages"]) == 3
    assert all({"id", "title", "text", "score"} <= set(passage) for passage in found["passages"])
    assert all(len(passage["text"].split()) <= 50 for passage in found["passages"])
    assert json.loads(said("search", "index", "caf\udce9", "--json"))["query"] == "caf\ufffd"
    only = json.loads(said("search", "index", "honey", "--where", "year>=1", "--json"))
    assert [passage["id"] for passage in only["passages"]] == ["bee"]


def test_an_index_is_changed(files, tiny_bert):
    said("build", "facts.jsonl", "-o", "index", "--encoder", tiny_bert)
    assert said("add", "index", "more.jsonl") == "1 passages added to index\n"
    assert said("remove", "index", "bee") == "1 passages removed from index\n"
    shown = said("info", "index", "--verify")
    assert "passages    1\nsegments    2; 1 passages added, 1 removed\n" in shown
    assert "search      flat (exact)\n" in shown
    assert "columns     id, title, year\n" in shown
    assert "segments    1; 0 passages added, 0 removed\n" in said("compact", "index", "--storage", "float16")
    assert json.loads(said("info", "index", "--json"))["passages"] == 1
    assert np.load("index/vectors.npy").dtype == np.float16
    assert [p["id"] for p in json.loads(said("search", "index", "text", "--json"))["passages"]] == ["ant"]


def test_the_commands_take_an_address_of_milvus(files, tiny_bert, capsys):
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    said("build", "facts.jsonl", "-o", "index", "--encoder", tiny_bert)
    assert said("push", "index", "milvus:docs.db") == "1 passages written; milvus:docs.db holds 1\n"
    assert said("add", "milvus:docs.db", "more.jsonl") == "1 passages added to milvus:docs.db\n"
    assert said("search", "milvus:docs.db", "honey", "-k", "1", "--where", "year=1").startswith("1. [")
    shown = ["passages    2", "columns     id, title, year", "search      Milvus, flat"]
    assert said("info", "milvus:docs.db").splitlines()[0::2] == shown
    assert load_retriever("milvus:docs.db", demo=False)(["honey"], 2)[0][0].id == "bee"
    assert said("remove", "milvus:docs.db", "bee") == "1 passages removed from milvus:docs.db\n"
    assert main(["index", "info", "milvus:docs.db", "--verify"]) == 2
    assert "has no checksums" in capsys.readouterr().err


def test_an_interrupt_is_one_line(files, tiny_bert, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("retrieval.encoders.TransformerEncoder.encode", interrupted)
    assert main(["index", "build", *files, "-o", "index", "--encoder", str(tiny_bert)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "selfrag: interrupted"
    assert not Path("index").exists()


def test_nothing_that_a_file_holds_reaches_the_terminal_as_a_command(files, tiny_bert, capsys):
    hostile = {"id": "a\x1b[2J", "title": "\x1b]0;title\x07\nsecond line", "text": "red \x1b[31m \u202e backwards"}
    Path("rows.jsonl").write_text(json.dumps(hostile) + "\n")
    said("build", "rows.jsonl", "-o", "index", "--encoder", tiny_bert)
    shown = said("search", "index", "red")
    assert shown.count("\n") == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    (found,) = json.loads(said("search", "index", "red", "--json"))["passages"]
    assert found["title"] == hostile["title"]
    Path("bad.csv").write_text("\x1b[31mid,\x1b]0;x\x07\n1,2\n")
    assert main(["index", "build", "bad.csv", "-o", "other"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert not {"\x1b", "\x07"} & set(err)


@pytest.mark.demo
def test_the_demo_index_is_searched_by_its_name(capsys):
    assert main(["index", "search", "demo", "Who was Marie Curie?", "-k", "1"]) == 0
    assert "Curie" in capsys.readouterr().out
    assert main(["index", "info", "demo"]) == 0
    assert "passages" in capsys.readouterr().out
