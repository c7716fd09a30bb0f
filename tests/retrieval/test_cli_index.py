"""The commands `selfrag index build` and `selfrag index search`, driven as a user drives them."""

import json
import re

import pytest
from typer.testing import CliRunner

from retrieval import UserError
from selfrag.cli.index import app
from selfrag.cli.main import main


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "facts.jsonl").write_text('{"id": "bee", "title": "Bee", "text": "Bees make honey."}\n')
    (tmp_path / "guide.md").write_text("# Dogs\n\nA dog barks. A dog sleeps. " + "A dog eats a long dinner. " * 30)
    return [tmp_path / "facts.jsonl", tmp_path / "guide.md"]


def test_build_then_search(tmp_path, files, tiny_bert):
    built = run("build", *files, "-o", tmp_path / "index", "--encoder", tiny_bert, "--words", 50, "--overlap", 2)
    assert built.exit_code == 0
    assert re.fullmatch(
        rf"\d+ passages in {re.escape(str(tmp_path / 'index'))}, encoded by {tiny_bert.parent.name}/{tiny_bert.name}\n",
        built.stdout,
    )
    shown = run("search", tmp_path / "index", "honey", "-k", 2)
    assert shown.stdout.count("\n") == 4
    assert re.match(r"1\. \[-?\d+\.\d{3}\] \S+  \w+\n   \w", shown.stdout)
    found = json.loads(run("search", tmp_path / "index", "honey", "-k", 3, "--json").stdout)
    assert found["query"] == "honey"
    assert len(found["passages"]) == 3
    assert set(found["passages"][0]) == {"id", "title", "text", "score"}
    assert all(len(passage["text"].split()) <= 50 for passage in found["passages"])


def test_user_errors_reach_the_main_program(tmp_path, files, tiny_bert):
    with pytest.raises(UserError, match="no index at"):
        run("search", tmp_path / "index", "honey")
    with pytest.raises(UserError, match="no file"):
        run("build", tmp_path / "missing.txt", "-o", tmp_path / "index", "--encoder", tiny_bert)
    with pytest.raises(UserError, match="words=0"):
        run("build", *files, "-o", tmp_path / "index", "--encoder", tiny_bert, "--words", 0)
    assert run("search", tmp_path / "index", "honey", "-k", 0).exit_code == 2


def test_an_interrupt_is_one_line(tmp_path, files, tiny_bert, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("retrieval.encoders.TransformerEncoder.encode", interrupted)
    code = main(["index", "build", *map(str, files), "-o", str(tmp_path / "index"), "--encoder", str(tiny_bert)])
    assert code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "selfrag: interrupted"
    assert not (tmp_path / "index").exists()


def test_nothing_that_a_document_holds_reaches_the_terminal_as_a_command(tmp_path, tiny_bert):
    hostile = {"id": "a\x1b[2J", "title": "\x1b]0;title\x07\nsecond line", "text": "red \x1b[31m \u202e backwards"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(hostile) + "\n")
    run("build", tmp_path / "rows.jsonl", "-o", tmp_path / "index", "--encoder", tiny_bert)
    shown = run("search", tmp_path / "index", "red").stdout
    assert shown.count("\n") == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    (found,) = json.loads(run("search", tmp_path / "index", "red", "--json").stdout)["passages"]
    assert found["title"] == hostile["title"]


@pytest.mark.parametrize("query", ["", "  \n"])
def test_an_empty_query_is_one_line(tmp_path, query):
    with pytest.raises(UserError, match="the query is empty"):
        run("search", tmp_path, query)


def test_a_query_of_broken_bytes_is_searched(tmp_path, files, tiny_bert):
    run("build", *files, "-o", tmp_path / "index", "--encoder", tiny_bert)
    found = json.loads(run("search", tmp_path / "index", "caf\udce9", "--json").stdout)
    assert found["query"] == "caf\ufffd"


def test_no_batch_is_smaller_than_one(tmp_path, files, capsys):
    code = main(["index", "build", *map(str, files), "-o", str(tmp_path / "index"), "--batch-size", "0"])
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_error_line_holds_no_terminal_commands(tmp_path, capsys):
    (tmp_path / "bad.csv").write_text("\x1b[31mid,\x1b]0;x\x07\n1,2\n")
    assert main(["index", "build", str(tmp_path / "bad.csv"), "-o", str(tmp_path / "index")]) == 2
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
