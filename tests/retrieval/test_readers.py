import gzip
import json

import pytest

from retrieval import Passage, UserError
from retrieval.documents import markdown_sections
from retrieval.readers import read_files
from retrieval.splitting import Splitting


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def passages(*files, **options):
    return [row.passage for row in read_files(files, Splitting(**options) if options else None)]


def error_of(*files):
    with pytest.raises(UserError) as caught:
        passages(*files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


WANTED = [Passage("1", 'He said "hi",\nthen left.', "A, b"), Passage("x", "Ünïcode 京", "")]


def test_all_tables_give_the_same_rows(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"id": row.id, "title": row.title, "text": row.text} for row in WANTED]
    jsonl = write(tmp_path / "a.jsonl", "\ufeff" + "\n\n".join(map(json.dumps, rows)) + "\r\n")
    csv = write(tmp_path / "a.csv", 'id,title,text\r\n1,"A, b","He said ""hi"",\nthen left."\r\nx,,Ünïcode 京\r\n')
    tsv = write(tmp_path / "a.tsv", 'text\tid\ttitle\n"He said ""hi"",\nthen left."\t1\tA, b\nÜnïcode 京\tx\t\n')
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    packed = write(tmp_path / "a.jsonl.gz", gzip.compress(jsonl.read_bytes()))
    for file in (jsonl, csv, tsv, tmp_path / "a.parquet", packed):
        assert passages(file) == WANTED, file


def test_rows_know_their_place(tmp_path):
    file = write(tmp_path / "a.csv", 'id,text\n1,"two\nlines"\n2,b\n')
    assert [str(row.place) for row in read_files([file])] == [f"{file}:2", f"{file}:4"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"id": "1", "text": "t"', ":2: not JSON"),
        ("[1]", ":2: list where an object"),
        ("[" * 100_000, ":2: JSON that cannot be read"),
        ('{"id": "1"}', ":2: no text"),
        ('{"id": "1", "text": 5}', ":2: text must be text, not int"),
        ('{"id": "1", "text": "t", "title": ["x"]}', ":2: title must be text, not list"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path, line, fault):
    file = write(tmp_path / "bad.jsonl", '{"id": "0", "text": "fine"}\n' + line + "\n")
    assert error_of(file).startswith(f"{file}{fault}")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "the header must name the columns id and text"),
        ("id,text,text\n1,2,3\n", "the header names text more than once"),
        ("id,text\n1,a,b\n", ":2: 3 fields where the header has 2"),
        ("id,text\n1," + "x" * 200_000 + "\n", "very long texts are better given as jsonl"),
    ],
)
def test_a_bad_table_is_named(tmp_path, content, fault):
    message = error_of(write(tmp_path / "bad.csv", content))
    assert fault in message
    assert str(tmp_path / "bad.csv") in message


@pytest.mark.parametrize("name", ["bad.jsonl", "bad.csv", "bad.txt", "bad.md"])
def test_bytes_that_are_not_utf8_are_named_by_line_and_offset(tmp_path, name):
    first = b"id,text\n" if name == "bad.csv" else b'{"id": "0", "text": "a"}\n'
    file = write(tmp_path / name, first + b"caf\xe9")
    assert error_of(file).startswith(f"{file}:2: not UTF-8 (byte 0xe9 at offset {len(first) + 3})")


def test_bad_files_are_named_before_any_row_is_read(tmp_path):
    good = write(tmp_path / "good.txt", "Some text.")
    assert "no files" in error_of()
    with pytest.raises(UserError, match="no file"):
        read_files([good, tmp_path / "missing.txt"])
    with pytest.raises(UserError, match=r"no reader for '.odt'; known: .jsonl"):
        read_files([good, tmp_path / "x.odt"])


def test_damaged_and_empty_files_are_named(tmp_path):
    assert "damaged gzip" in error_of(write(tmp_path / "a.txt.gz", gzip.compress(b"text" * 999)[:-9]))
    assert "not a readable Parquet" in error_of(write(tmp_path / "c.parquet", b"no parquet"))
    assert "the file is empty" in error_of(write(tmp_path / "d.txt", " \n"))
    assert "no rows" in error_of(write(tmp_path / "e.jsonl", "\n"))
    twice = write(tmp_path / "g.txt", "x")
    assert "given twice" in error_of(twice, tmp_path / "." / "g.txt")


def test_documents_become_passages_with_stable_ids(tmp_path):
    file = write(tmp_path / "guide.txt", "One two three. Four five six.\nSeven eight nine.")
    found = passages(file, words=3, overlap=0)
    assert [(p.id, p.title, p.text) for p in found] == [
        ("guide-1", "guide", "One two three."),
        ("guide-2", "guide", "Four five six."),
        ("guide-3", "guide", "Seven eight nine."),
    ]
    assert [row.place.number for row in read_files([file], Splitting(3, 0))] == [1, 1, 2]


MARKDOWN = """Before any heading.

# Guide *to* `it`

Intro.

```sh
# not a heading
```

## Install

Run it.

## Empty

### Deep [link](http://x)

Deep text.

Other
=====

Last.

# Alone
"""


def test_markdown_headings_are_titles(tmp_path):
    sections = {s.title: MARKDOWN[s.start : s.end].strip() for s in markdown_sections(MARKDOWN, "doc")}
    assert sections == {
        "doc": "Before any heading.",
        "Guide to it": "Intro.\n\n```sh\n# not a heading\n```",
        "Guide to it > Install": "Run it.",
        "Guide to it > Empty > Deep link": "Deep text.",
        "Other": "Last.",
        "Alone": "# Alone",
    }
    found = passages(write(tmp_path / "doc.md", MARKDOWN))
    assert [p.id for p in found] == [f"doc-{n}" for n in range(1, 7)]
