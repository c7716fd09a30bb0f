"""The commands `selfrag index ..`, driven as a user drives them."""

import json
import re
from pathlib import Path

from index_files import files as files
from index_files import ix as ix
from tables import each

from retrieval import Passage
from retrieval.build import add_passages
from retrieval.index import load_manifest


def test_build_then_search(ix, files, tiny_bert):
    out, _ = ix(f"build {files} -o index --encoder {tiny_bert} --words 50 --overlap 2")
    name = f"{tiny_bert.parent.name}/{tiny_bert.name}"
    assert re.fullmatch(rf"\d+ passages in index, encoded by {name}\n", out)
    out, _ = ix("search index honey -k 2")
    assert re.match(r"1\. \[-?\d+\.\d{3}\] \S+  \w+\n   \w.*\n2\.", out)
    reply = json.loads(ix("search index 'caf\udce9' -k 3 --json")[0])
    assert reply["query"] == "caf\ufffd"
    assert len(reply["passages"]) == 3
    for passage in reply["passages"]:
        assert {"id", "title", "text", "score"} <= set(passage)
        assert len(passage["text"].split()) <= 50
    out, _ = ix("search index honey --where 'year>=1' --json")
    assert [passage["id"] for passage in json.loads(out)["passages"]] == ["bee"]
    assert json.loads(ix("info index --json")[0])["language"] == "english"


def test_an_index_of_words_only_needs_no_encoder(ix, files):
    out, _ = ix(f"build {files} -o index --encoder none")
    assert out.endswith("passages in index, words only\n")
    assert "none, words only" in ix("info index --verify")[0]
    assert ix("search index honey")[0].startswith("1. ")
    Path("more.txt").write_text("A badger digs.")
    added = json.loads(ix("add index more.txt --json")[0])
    assert added["passages_added"] == 1
    assert added["passages_encoded"] == 0
    synced = json.loads(ix("sync index more.txt --json")[0])
    assert synced["passages"] == 1
    assert synced["compacted"]
    assert "more-1" in ix("search index badger --encoder none")[0]
    new = json.loads(ix(f"sync new {files} --encoder none --json")[0])
    assert new["passages_encoded"] == 0 < new["passages"]


LACKING = """
search index bee --search-mode dense → index index has words only
search index bee --encoder BERT → index index has words only
export index -o x.parquet --with-vectors → index index has words only
sync index facts.jsonl --encoder BERT → index index was built with another
compact index --kind ivf → kind=ivf: an index without an encoder has no
compact index --language none → language=none: an index without an
build facts.jsonl -o i2 --encoder none --storage int8 → storage=int8: an index
build facts.jsonl -o i2 --encoder none --device cpu → encoder none has no sett
build facts.jsonl -o i2 --encoder none --vectors v.npy → --vectors are of an
"""


@each("line, reason", LACKING)
def test_an_index_of_words_only_says_what_it_lacks(
    ix, files, tiny_bert, refusal, line, reason
):
    ix("build facts.jsonl -o index --encoder none")
    line = line.replace("BERT", str(tiny_bert))
    assert refusal(f"selfrag index {line}").startswith(f"selfrag: {reason}")


def test_an_interrupt_is_one_line(ix, files, tiny_bert, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "retrieval.local_encoders.TokenEncoder.encode_blocks", interrupted
    )
    _, err = ix(f"build {files} -o index --encoder {tiny_bert}", code=130)
    assert err.splitlines()[-1] == "selfrag: interrupted"
    assert not Path("index").exists()


def test_nothing_that_a_file_holds_reaches_the_terminal_as_a_command(
    ix, tmp_path, monkeypatch, refusal
):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(
        r'{"id": "a\u001b[2J", "title": "\u001b]0;title\u0007\nsecond line",'
        r' "text": "red \u001b[31m \u202e backwards"}'
    )
    ix("build rows.jsonl -o index --encoder none")
    shown, _ = ix("search index red")
    assert shown.count("\n") == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    (passage,) = json.loads(ix("search index red --json")[0])["passages"]
    assert passage["title"] == "\ufffd]0;title\ufffd\nsecond line"
    Path("bad.csv").write_text("\x1b[31mid,\x1b]0;x\x07\n1,2\n")
    line = "selfrag index build bad.csv -o other --text-column none -q"
    assert not {"\x1b", "\x07"} & set(refusal(line))


def test_a_build_of_unchanged_files_says_that_it_did_not_read_them(
    ix, files, monkeypatch
):
    monkeypatch.setattr("retrieval.sources._SETTLED", 0.0)
    build = f"build {files} -o index --encoder none"
    assert "read 2 files, 3 passages\n" in ix(build)[1]
    assert json.loads(ix(f"{build} --json")[0])["read"] is None


def test_a_build_counts_the_passages_that_are_longer_than_the_encoder_reads(
    ix, files, tiny_bert
):
    """The tiny encoder reads few tokens: of these files only the first passage is short enough."""
    _, err = ix(f"build {files} -o index --encoder {tiny_bert}")
    assert err.splitlines()[-1] == (
        "2 passages are longer than the encoder reads (64 tokens); words search them whole"
    )
    synced = json.loads(ix(f"sync index {files} --words 8 --overlap 0 --json")[0])
    assert synced["read"]["long_passages"] == {"count": 0, "max_tokens": 64}


def test_d20_rows_are_cut_as_the_index_was_built(ix, files):
    """`add` and `sync` take the bound of the index, or the one that is named."""
    for name in ("long", "more"):
        row = f'{{"id": "{name}", "text": "{"word " * 600}"}}'
        Path(f"{name}.jsonl").write_text(row)
    ix("build facts.jsonl -o index --row-words 300 --words 200 --encoder none")
    out, _ = ix("add index long.jsonl")
    assert out == "3 passages added to index\n"
    out, _ = ix("add index more.jsonl --row-words 700")
    assert out == "1 passage added to index\n"
    ix("sync index facts.jsonl long.jsonl --row-words 600")
    out, _ = ix("sync index facts.jsonl long.jsonl --json")
    assert json.loads(out)["passages"] == 2


def test_a_build_loses_no_passages_of_other_files_unless_told_to(ix, files, refusal):
    build = "build -o index --encoder none"
    ix(f"{build} {files}")
    add_passages("index", [Passage("own", "Cats purr.")])
    for kept, lost in (("facts.jsonl", "3 passages"), (files, "1 passage")):
        assert refusal(f"selfrag index {build} {kept}") == (
            f"selfrag: index index holds {lost} of other files: add to it with `selfrag index add index FILES`,"
            " or give --replace (in Python `replace=True`) to drop them\n"
        )
        assert load_manifest("index").rows == 4
    out, _ = ix(f"{build} --replace --json facts.jsonl")
    assert json.loads(out)["read"]["replaced"] == 3
    assert load_manifest("index").rows == 1
    # the same files, one of them changed: nothing is lost
    Path("facts.jsonl").write_text('{"id": "bee", "text": "Bees dance."}\n')
    assert "replaced" not in ix(f"{build} {files}")[1]
    _, err = ix(f"{build} --replace guide.md")
    assert "replaced an index with 1 passage of other files" in err
