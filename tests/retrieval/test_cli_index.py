"""The commands `selfrag index ..`, driven as a user drives them."""

import json
import os
import re
import time
from pathlib import Path

import pytest
from index_commands import files as files
from index_commands import run, said
from json_files import write_json

from retrieval import Passage
from retrieval.build import add_passages
from retrieval.index import load_manifest
from selfrag.cli.main import main
from selfrag.common.errors import UserError


def test_build_then_search(files, tiny_bert):
    built = said(
        "build",
        *files,
        "-o",
        "index",
        "--encoder",
        tiny_bert,
        "--words",
        50,
        "--overlap",
        2,
    )
    assert re.fullmatch(
        rf"\d+ passages in index, encoded by {tiny_bert.parent.name}/{tiny_bert.name}\n",
        built,
    )
    assert re.match(
        r"1\. \[-?\d+\.\d{3}\] \S+  \w+\n   \w.*\n2\.",
        said("search", "index", "honey", "-k", 2),
    )
    reply = json.loads(said("search", "index", "caf\udce9", "-k", 3, "--json"))
    assert (reply["query"], len(reply["passages"])) == ("caf\ufffd", 3)
    assert all(
        {"id", "title", "text", "score"} <= set(passage)
        for passage in reply["passages"]
    )
    assert all(len(passage["text"].split()) <= 50 for passage in reply["passages"])
    only = json.loads(said("search", "index", "honey", "--where", "year>=1", "--json"))
    assert [passage["id"] for passage in only["passages"]] == ["bee"]
    assert json.loads(said("info", "index", "--json"))["language"] == "english"


def test_an_index_of_words_only_needs_no_encoder(files):
    built = run("build", *files, "-o", "index", "--encoder", "none")
    assert built.stdout.endswith("passages in index, words only\n")
    assert "none, words only" in said("info", "index", "--verify")
    assert said("search", "index", "honey").startswith("1. ")
    Path("more.txt").write_text("A badger digs.")
    added = json.loads(said("add", "index", "more.txt", "--json"))
    assert (added["passages_added"], added["passages_encoded"]) == (1, 0)
    synced = json.loads(said("sync", "index", "more.txt", "--json"))
    assert (synced["passages"], synced["compacted"]) == (1, True)
    assert "more-1" in said("search", "index", "badger", "--encoder", "none")
    new = json.loads(said("sync", "new", *files, "--encoder", "none", "--json"))
    assert new["passages_encoded"] == 0 < new["passages"]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("search index bee --search-mode dense", "index index has words only"),
        ("search index bee --search-mode hybrid", "index index has words only"),
        ("search index bee --encoder {bert}", "index index has words only"),
        ("export index -o x.parquet --with-vectors", "index index has words only"),
        ("sync index {file} --encoder {bert}", "index index was built with another"),
        ("compact index --kind ivf", "kind=ivf: an index without an encoder has no"),
        ("compact index --language none", "language=none: an index without an"),
        ("build {file} -o i2 --encoder none --storage int8", "storage=int8: an index"),
        ("build {file} -o i2 --encoder none --device cpu", "encoder none has no sett"),
        ("build {file} -o i2 --encoder none --vectors v.npy", "--vectors are of an"),
    ],
)
def test_an_index_of_words_only_says_what_it_lacks(files, tiny_bert, line, reason):
    said("build", files[0], "-o", "index", "--encoder", "none")
    with pytest.raises(UserError, match=f"^{reason}"):
        run(*line.format(bert=tiny_bert, file=files[0]).split())


def test_an_interrupt_is_one_line(files, tiny_bert, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "retrieval.local_encoders.TokenEncoder.encode_blocks", interrupted
    )
    assert (
        main(["index", "build", *files, "-o", "index", "--encoder", str(tiny_bert)])
        == 130
    )
    assert capsys.readouterr().err.splitlines()[-1] == "selfrag: interrupted"
    assert not Path("index").exists()


def test_nothing_that_a_file_holds_reaches_the_terminal_as_a_command(
    files, tiny_bert, capsys
):
    hostile = {
        "id": "a\x1b[2J",
        "title": "\x1b]0;title\x07\nsecond line",
        "text": "red \x1b[31m \u202e backwards",
    }
    Path("rows.jsonl").write_text(json.dumps(hostile) + "\n")
    said("build", "rows.jsonl", "-o", "index", "--encoder", tiny_bert)
    shown = said("search", "index", "red")
    assert shown.count("\n") == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    (passage,) = json.loads(said("search", "index", "red", "--json"))["passages"]
    assert passage["title"] == "\ufffd]0;title\ufffd\nsecond line"
    Path("bad.csv").write_text("\x1b[31mid,\x1b]0;x\x07\n1,2\n")
    line = ["index", "build", "bad.csv", "-o", "other", "--text-column", "none", "-q"]
    assert main(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert not {"\x1b", "\x07"} & set(err)


def test_a_build_of_unchanged_files_says_that_it_did_not_read_them(files, tiny_bert):
    for file in files:
        os.utime(file, (1, 1))
    build = ["build", *files, "-o", "index", "--encoder", tiny_bert]
    assert "read 2 files, 3 passages\n" in run(*build).stderr
    time.sleep(2.1)  # until the times of the files tell of a change
    assert run(*build).exit_code == 0
    assert json.loads(said(*build, "--json"))["read"] is None


def test_a_build_counts_the_passages_that_are_longer_than_the_encoder_reads(
    files, tiny_bert
):
    """The tiny encoder reads few tokens: of these files only the first passage is short enough."""
    done = run("build", *files, "-o", "index", "--encoder", tiny_bert)
    assert done.stderr.splitlines()[-1] == (
        "2 passages are longer than the encoder reads (64 tokens); words search them whole"
    )
    synced = json.loads(
        said("sync", "index", *files, "--words", 8, "--overlap", 0, "--json")
    )
    assert synced["read"]["long_passages"] == {"count": 0, "max_tokens": 64}


def test_d20_rows_are_cut_as_the_index_was_built(files, tiny_bert):
    """`add` and `sync` take the bound of the index, or the one that is named."""
    for name in ("long", "more"):
        write_json(Path(f"{name}.jsonl"), {"id": name, "text": "word " * 600})
    encoder = ["--encoder", tiny_bert]
    said(
        "build",
        "facts.jsonl",
        "-o",
        "index",
        "--row-words",
        300,
        "--words",
        200,
        *encoder,
    )
    assert said("add", "index", "long.jsonl") == "3 passages added to index\n"
    assert (
        said("add", "index", "more.jsonl", "--row-words", 700)
        == "1 passage added to index\n"
    )
    said("sync", "index", "facts.jsonl", "long.jsonl", "--row-words", 600)
    assert (
        json.loads(said("sync", "index", "facts.jsonl", "long.jsonl", "--json"))[
            "passages"
        ]
        == 2
    )


def test_a_build_loses_no_passages_of_other_files_unless_told_to(
    files, tiny_bert, capsys
):
    build = ["index", "build", "-o", "index", "--encoder", str(tiny_bert)]
    assert main([*build, *files]) == 0
    add_passages("index", [Passage("own", "Cats purr.")], encoder=tiny_bert)
    capsys.readouterr()
    for kept, lost in ((files[:1], 3), (files, 1)):
        assert main([*build, *kept]) == 2
        out, err = capsys.readouterr()
        passages = {1: "1 passage", 3: "3 passages"}[lost]
        assert (out, err) == (
            "",
            f"selfrag: index index holds {passages} of other files: add to it with `selfrag index add index FILES`,"
            " or give --replace (in Python `replace=True`) to drop them\n",
        )
        assert load_manifest("index").rows == 4
    assert main([*build, "--replace", "--json", files[0]]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["read"]["replaced"] == 3
    assert load_manifest("index").rows == 1
    # the same files, one of them changed: nothing is lost
    Path(files[0]).write_text('{"id": "bee", "text": "Bees dance."}\n')
    assert main([*build, *files]) == 0
    out, err = capsys.readouterr()
    assert "replaced" not in err
    assert main([*build, "--replace", files[1]]) == 0
    assert "replaced an index with 1 passage of other files" in capsys.readouterr().err
