"""What a user can name in the place of a file, and what a file can hold: rows, or one line, in bounded time."""

import gzip
import json
import os
import tracemalloc
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Passage, UserError, build_index, index_passages, open_index
from retrieval.documents.markdown import parse_markdown
from retrieval.readers import read_files
from retrieval.reports import ReadReport
from retrieval.splitting import Splitting
from selfrag.common.jsonl import read_jsonl
from selfrag.common.reading import parse_json, read_json, read_lines, read_whole


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def passages(*files, **options):
    return [
        row.passage
        for row in read_files(files, Splitting(**options) if options else None)
    ]


def one_line(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 2100
    return message


def loop(folder, name):
    (folder / name).symlink_to(folder / f"other-{name}")
    (folder / f"other-{name}").symlink_to(folder / name)
    return folder / name


HOSTILE_PATHS = {
    "link loop": loop,
    "below a link loop": lambda folder, name: loop(folder, f"loop-{name}") / name,
    "NUL": lambda folder, name: f"a\0{name}",
    "lone surrogate": lambda folder, name: f"\ud800{name}",
    "name too long": lambda folder, name: folder / ("n" * 300 + name),
    "path too long": lambda folder, name: folder / ("d/" * 3000 + name),
    "pipe": lambda folder, name: os.mkfifo(folder / name) or folder / name,
    "device": lambda folder, name: (
        (folder / name).symlink_to("/dev/zero") or folder / name
    ),
    "no such home": lambda folder, name: f"~no-such-user-here/{name}",
    "below a file": lambda folder, name: (
        (folder / "f").write_text("x") and folder / "f" / name
    ),
    "dangling link": lambda folder, name: (
        (folder / name).symlink_to(folder / "gone") or folder / name
    ),
}


@pytest.mark.parametrize("kind", HOSTILE_PATHS)
def test_a_path_where_nothing_can_be_is_one_line(tmp_path, kind, encoder, animals):
    path = HOSTILE_PATHS[kind](tmp_path, "index.jsonl")
    one_line(read_files, [path])
    one_line(lambda: list(read_jsonl(path, dict)))
    one_line(open_index, path, encoder)
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "text": "b"}')
    one_line(
        lambda: build_index([tmp_path / "rows.jsonl"], tmp_path / "i", encoder=path)
    )
    assert not (tmp_path / "i").exists()
    assert not (tmp_path / "i.building").exists()
    if kind != "dangling link":
        before = sorted(tmp_path.iterdir())
        one_line(lambda: index_passages(animals, path, encoder=encoder))
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "text, fault",
    [
        ('{"a": NaN}', "NaN is no JSON value"),
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ("1" * 5000, "Exceeds the limit"),
        ("", "not JSON"),
        ('"a\nb"', "not JSON"),
    ],
)
def test_json_is_read_strictly(text, fault):
    assert one_line(parse_json, text, "file:3").startswith("file:3: ")
    assert fault in one_line(parse_json, text, "file:3")


WANTED = [
    Passage("1", 'He said "hi",\nthen left.', "A, b"),
    Passage("x", "Ünïcode 京", ""),
]


def test_all_tables_give_the_same_rows(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"id": row.id, "title": row.title, "text": row.text} for row in WANTED]
    jsonl = write(
        tmp_path / "a.jsonl", "\ufeff" + "\n\n".join(map(json.dumps, rows)) + "\r\n"
    )
    csv = write(
        tmp_path / "a.csv",
        'id,title,text\r\n1,"A, b","He said ""hi"",\nthen left."\r\nx,,Ünïcode 京\r\n',
    )
    tsv = write(
        tmp_path / "a.tsv",
        'text\tid\ttitle\n"He said ""hi"",\nthen left."\t1\tA, b\nÜnïcode 京\tx\t\n',
    )
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    packed = write(tmp_path / "a.jsonl.gz", gzip.compress(jsonl.read_bytes(), mtime=0))
    for file in (jsonl, csv, tsv, tmp_path / "a.parquet", packed):
        assert passages(file) == WANTED, file


def test_rows_know_their_place_and_byte_order_marks_are_no_text(tmp_path):
    file = write(tmp_path / "a.csv", 'id,text\n1,"two\nlines"\n2,b\n')
    assert [str(row.place) for row in read_files([file])] == [f"{file}:2", f"{file}:4"]
    assert read_json(write(tmp_path / "a.json", b"\xef\xbb\xbf[1]")) == [1]
    assert read_whole(write(tmp_path / "a.txt", b"\xef\xbb\xbfa\r\nb\r")) == "a\nb\n"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_d21_utf_16_with_a_byte_order_mark_is_read(tmp_path, encoding):
    """Spreadsheets save "Unicode text" so. U+010A and U+0A0D hold the bytes of line ends."""
    texts = {
        "a.tsv": 'id\ttext\r\n1\t"Ċ \u0a0d 京 🐝\nno"\r\n2\tb\r\n',
        "a.csv": 'id,text\n1,"Ċ \u0a0d 京 🐝\nno"\n2,b',
        "a.jsonl": '{"id": 1, "text": "Ċ \u0a0d 京 🐝\\nno"}\n\n{"id": 2, "text": "b"}',
    }
    for name, text in texts.items():
        data = ("\ufeff" + text).encode(encoding)
        for file in (
            write(tmp_path / name, data),
            write(tmp_path / f"{name}.gz", gzip.compress(data)),
        ):
            assert [passage.text for passage in passages(file)] == [
                "Ċ \u0a0d 京 🐝\nno",
                "b",
            ]
    for name in ("a.txt", "a.md"):
        file = write(tmp_path / name, "\ufeffA Ċ.\r\n\rB 🐝.".encode(encoding))
        assert (read_whole(file), len(passages(file))) == ("A Ċ.\n\nB 🐝.", 1)


def test_a_file_of_nothing_but_a_byte_order_mark_is_empty(tmp_path):
    for data in (b"", b"\xff\xfe", b"\xef\xbb\xbf"):
        assert (
            read_whole(write(tmp_path / "a", data))
            == "".join(read_lines(tmp_path / "a"))
            == ""
        )


def utf16(text):
    return ("\ufeff" + text).encode("utf-16-le", "surrogatepass")


HEAD = '{"id": "0", "text": "fine"}\n'
BAD_FILES = [
    *(
        ("a.jsonl", HEAD + line, fault)
        for line, fault in (
            ('{"id": "1", "text": "t"', ":2: not JSON"),
            ("[1]", ":2: list where an object"),
            ("[" * 100_000, ":2: JSON that cannot be read"),
            ('{"id": "1"}', ":2: no text"),
            ('{"id": "1", "text": 5}', ":2: text must be text, not int"),
            (
                '{"id": "1", "text": "t", "title": ["x"]}',
                ":2: title must be text, not list",
            ),
        )
    ),
    ("a.csv", "", ": the file is empty"),
    ("a.csv", "id,text,text\n1,2,3\n", ": the header names text more than once"),
    ("a.csv", "id,text\n1,a,b\n", ":2: 3 fields where the header has 2"),
    (
        "a.csv",
        "id,text\n1," + "x" * 200_000 + "\n",
        "very long texts are better given as jsonl",
    ),
    *(
        (name, b"id,text\ncaf\xe9", ":2: not UTF-8 (byte 0xe9 at offset 11)")
        for name in ("a.csv", "a.txt", "a.md")
    ),
    pytest.param(
        "a.csv", 'id,text\n1,"a" b\n', 'write a quote twice: ""', id="D21 quotes"
    ),
    ("a.csv", 'id,text\n1,"a b\n', "a quoted field has no end"),
    pytest.param("a.csv", b"id,text\r1,words\r", "bare carriage return", id="D21 CR"),
    pytest.param(
        "a.csv", "id;text\n1;words\n", "separated by semicolons", id="D21 semicolons"
    ),
    pytest.param(
        "a.csv", b"id,text\n1,a \x96 b\n", "iconv -f cp1252 -t utf-8", id="D21 cp1252"
    ),
    (
        "a.jsonl",
        HEAD.encode() + b"caf\xe9",
        f":2: not UTF-8 (byte 0xe9 at offset {len(HEAD) + 3})",
    ),
    *(
        (name, b"id,text\nca\0fe", ":2: a NUL character (byte 0x00 at offset 10)")
        for name in ("a.csv", "a.txt", "a.md")
    ),
    (
        "a.jsonl",
        b'{"id": "1", "text": "a"}\n{"text": "\0"}',
        ":2: a NUL character (byte 0x00 at offset 35)",
    ),
    # UTF-16 of plain letters is valid UTF-8 with NUL bytes: it would be indexed as words with holes.
    *(
        (name, "id,text\n1,words\n".encode("utf-16-le"), "iconv -f utf-16")
        for name in ("a.txt", "a.csv", "a.jsonl")
    ),
    *(
        (name, utf16("id,text\n1,b\nc,\udc00\n"), ":3: not UTF-16 (U+DC00 is no")
        for name in ("a.csv", "a.txt")
    ),
    *(
        (name, utf16("id,text\n1,b\nc,\0\n"), ":3: not UTF-16 (U+0000 is no")
        for name in ("a.csv", "a.md")
    ),
    *(
        (name, utf16("id,text\n1,b") + b"x", "not UTF-16 (truncated data)")
        for name in ("a.csv", "a.txt")
    ),
    *(
        (name, utf16("id,text\n1,b\ud800"), ":2: not UTF-16 (U+D800 is no")
        for name in ("a.csv", "a.txt")
    ),
    *(
        (name, "\ufeffid,text".encode("utf-32-le"), "iconv -f utf-32")
        for name in ("a.csv", "a.txt")
    ),
    ("a.csv", utf16("id\ttext\n1\tb\n"), "separated by tabs; name it .tsv"),
    (
        "a.csv.gz",
        gzip.compress(utf16("x" * (10 << 20)), mtime=0),
        "unpacks to more than 16 MiB",
    ),
    ("a.txt.gz", gzip.compress(b"text" * 999, mtime=0)[:-9], "damaged gzip"),
    ("a.parquet", b"no parquet", "not a readable Parquet"),
    ("a.txt", " \n", "the file is empty"),
    ("a.jsonl", "\n", "the file is empty"),
    (
        "a.jsonl.gz",
        gzip.compress((b" " * 65_535 + b"\n") * 320, mtime=0),
        "unpacks to more than 16 MiB",
    ),
    (
        "a.txt.gz",
        gzip.compress(b"a" * (20 << 20), mtime=0),
        "unpacks to more than 16 MiB",
    ),
    (
        "a.csv.gz",
        gzip.compress(b"x" * (20 << 20), mtime=0),
        "unpacks to more than 16 MiB",
    ),
]


@pytest.mark.parametrize(
    "name, content, fault", BAD_FILES, ids=lambda value: str(value)[:30]
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path, name, content, fault):
    message = one_line(passages, write(tmp_path / name, content))
    assert message.startswith(str(tmp_path / name))
    assert fault in message


def test_bad_files_are_named_before_any_row_is_read(tmp_path):
    good = write(tmp_path / "good.txt", "Some text.")
    assert "no files" in one_line(read_files, [])
    assert "no file" in one_line(read_files, [good, tmp_path / "missing.txt"])
    assert "no reader for '.sxw'; known: .jsonl" in one_line(
        read_files, [good, write(tmp_path / "x.sxw", "")]
    )
    assert "unpack it first" in one_line(read_files, [write(tmp_path / "x.pdf.gz", "")])


def test_a_long_message_keeps_its_beginning_and_its_end(tmp_path):
    message = one_line(
        passages,
        write(
            tmp_path / "a.jsonl",
            '{"id": "a", "text": "b"}\n'
            + json.dumps({f"field {n}": 1 for n in range(50_000)}),
        ),
    )
    assert message.startswith(f"{tmp_path / 'a.jsonl'}:2: no text")
    assert message.endswith("field 49999)")


TABLES = ("a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz")
DOCUMENTS = ("a.txt", "a.md.gz")


BYTES = st.binary(max_size=60) | st.text(max_size=60).map(
    lambda text: text.encode("utf-8", "replace")
)


@pytest.mark.parametrize("names", [TABLES, DOCUMENTS])
@settings(max_examples=15)  # of each of the names
@given(data=BYTES)
def test_any_bytes_are_rows_or_one_line(tmp_path_factory, names, data):
    folder = tmp_path_factory.mktemp("bytes", numbered=True)
    for name in names:
        (folder / name).write_bytes(data)
        try:
            rows = list(read_files([folder / name]))
        except UserError as error:
            rows = str(error)
        if isinstance(rows, str):
            assert "\n" not in rows
        else:
            assert all(row.passage.text.strip() for row in rows)


def test_a_line_without_end_is_refused_before_memory_is(tmp_path, monkeypatch):
    monkeypatch.setattr("selfrag.common.reading._MOST", 1 << 22)
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.truncate(1 << 40)  # takes no space
    assert "a line of more than 4 MiB" in one_line(
        lambda: list(read_lines(tmp_path / "a.jsonl"))
    )
    (tmp_path / "a.jsonl").rename(tmp_path / "a.txt")
    assert "more than 4 MiB" in one_line(read_whole, tmp_path / "a.txt")
    with (tmp_path / "a.tsv").open("wb") as file:
        file.write(utf16("x"))
        file.truncate(1 << 40)
    assert "a line of more than 4 MiB" in one_line(
        lambda: list(read_lines(tmp_path / "a.tsv"))
    )


LINEAR = 8  # of 4 for linear and 16 for quadratic work


@pytest.mark.parametrize("piece", ["[", "*a_ ", "# a\n", "> a\n", "[a]: b\n"])
def test_the_time_of_markdown_grows_as_the_text(growth, piece):
    for head in ("",) if "\n" in piece else ("", "# "):
        size = 6_000 if "\n" in piece else 20_000
        make = partial(lambda head, size: head + (piece * size)[:size], head)
        assert growth(make, lambda text: parse_markdown(text, "doc"), size) < LINEAR


@pytest.mark.parametrize(
    "name, make, size",
    [
        *(
            ("a.txt", lambda size, piece=piece: (piece * size)[:size], 40_000)
            for piece in ("A b c. ", "x", "a\n \n")
        ),
        (
            "a.jsonl",
            lambda size: "".join(
                f'{{"id": "p{n}", "text": "passage {n}"}}\n' for n in range(size)
            ),
            10_000,
        ),
        (
            "a.tsv",
            lambda size: utf16(
                "id\ttext\n" + "".join(f"p{n}\tpassage {n}\n" for n in range(size))
            ),
            10_000,
        ),
        ("a.txt", lambda size: utf16("A Ċ. " * size), 10_000),
        (
            "a.csv",
            lambda size: f"{','.join(f'column {n}' for n in range(size))},id,text\n1\n",
            30_000,
        ),
    ],
)
def test_the_time_of_reading_grows_as_the_file(growth, tmp_path, name, make, size):
    def made(size):
        (tmp_path / str(size)).mkdir(exist_ok=True)
        return write(tmp_path / str(size) / name, make(size))

    def read(path):
        with suppress(UserError):
            list(read_files([path]))

    assert growth(made, read, size) < LINEAR


def test_rows_are_read_without_holding_the_file(tmp_path):
    row = '{{"id": "p{}", "text": "' + "word " * 100 + '"}}\n'
    path = write(tmp_path / "a.jsonl", "".join(map(row.format, range(12_000))))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_files([path])) == 12_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 6_000_000
    assert peak < 2_000_000


def test_d16_files_that_cannot_be_read_are_listed_and_left_out(tmp_path):
    """Of a table with a bad row nothing is read."""
    texts = {
        "town.md": "Green tea.",
        "empty.txt": " ",
        "rows.jsonl": '{"id": "a", "text": "Black tea."}\n',
        "bad.jsonl": '{"id": "b", "text": "Red tea."}\n{"id"}\n',
        "image.png": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in (*texts, "missing.txt")]
    report = ReadReport()
    rows = list(read_files(files, report=report, skip_unreadable=True))
    assert [row.passage.id for row in rows] == ["town-1", "a"]
    assert (report.files, report.passages, report.skipped) == (2, 2, [])
    assert {
        Path(file.file).name: file.why.partition(": ")[2][:20]
        for file in report.unreadable
    } == {
        "image.png": "no reader for '.png'",
        "missing.txt": "cannot be read: no f",
        "bad.jsonl": "not JSON (Expecting ",
    }
    assert report.empty == [str(tmp_path / "empty.txt")]
    with pytest.raises(UserError, match=r"of 1 file none .*image.png: no reader"):
        list(read_files([files[4], files[1]], skip_unreadable=True))
    with pytest.raises(UserError, match=r"image\.png"):
        read_files(files)


def test_d20_a_long_row_becomes_passages_that_know_their_row(tmp_path):
    long = "A word here. " * 200
    rows = [
        {"id": "short", "text": "word " * 400},
        {"id": "long", "text": long, "year": 1},
    ]
    file = write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)))
    report = ReadReport()
    rows = list(read_files([file], Splitting(words=100, overlap=0), report=report))
    assert [row.passage.id for row in rows] == [
        "short",
        *(f"long-{n}" for n in range(1, 8)),
    ]
    assert " ".join(row.passage.text for row in rows[1:]) == long.strip()
    assert rows[1].metadata == {"year": 1, "row_id": "long"}
    assert (report.passages, report.cut_rows) == (8, 1)


def test_parquet_columns_of_every_kind_of_text_are_read_and_others_refused(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    values = {
        "id": pa.array([1, 2]),
        "title": pa.array(["T", None]).dictionary_encode(),
        "text": pa.array(["one", "two"], pa.large_string()),
        "kind": pa.array(["k", None]).dictionary_encode(),
        "year": pa.array([None, 2.5]),
    }
    parquet.write_table(pa.table(values), file)
    rows = list(read_files([file]))
    assert [row.passage for row in rows] == [
        Passage("1", "one", "T"),
        Passage("2", "two", ""),
    ]
    assert [row.metadata for row in rows] == [{"kind": "k"}, {"year": 2.5}]
    for text, kind in (
        (pa.array([["a"], ["b"]]), "list"),
        (pa.array([b"a", b"b"]), "binary"),
    ):
        parquet.write_table(pa.table(values | {"text": text}), file)
        assert f"the column text must hold text, not {kind}" in one_line(passages, file)
    parquet.write_table(pa.table(values | {f"c{n}": [n, n] for n in range(1000)}), file)
    assert "1005 columns; keep id, title, text and at most 997 others" in one_line(
        passages, file
    )


def test_a_table_without_text_is_read_row_by_row(tmp_path):
    """Issue 61, section 3: a table of customers was refused."""
    write(tmp_path / "customers.csv", "name,city,since\nAnn,Oslo,2020\nBob,,2021\n")
    first, second = read_files([tmp_path / "customers.csv"])
    assert first.passage == Passage("customers-1", "name: Ann, city: Oslo, since: 2020")
    assert second.passage.text == "name: Bob, since: 2021"
    assert second.metadata == {"row": 2, "name": "Bob", "since": "2021"}
    write(tmp_path / "people.jsonl", '{"name": "Ann", "age": 7}\n{"name": "Bob"}\n')
    texts = [row.passage.text for row in read_files([tmp_path / "people.jsonl"])]
    assert texts == ["name: Ann, age: 7", "name: Bob"]
    chosen = Splitting(text_column="city", title_column="name", id_column="since")
    with pytest.raises(UserError, match="text is empty"):
        list(read_files([tmp_path / "customers.csv"], chosen))
    write(tmp_path / "one.csv", "name,city,since\nAnn,Oslo,2020\n")
    (row,) = read_files([tmp_path / "one.csv"], chosen)
    assert row.passage == Passage("2020", "Oslo", "Ann")


@pytest.mark.parametrize("role", ["text", "title", "id"])
def test_a_column_that_a_table_does_not_have_is_refused_with_those_it_has(
    tmp_path, role
):
    write(tmp_path / "a.csv", "name,city\nAnn,Oslo\n")
    splitting = Splitting(**{f"{role}_column": "town"})
    with pytest.raises(UserError, match=f"no column 'town' for the {role}; .* city"):
        list(read_files([tmp_path / "a.csv"], splitting))
