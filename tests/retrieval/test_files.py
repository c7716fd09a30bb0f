"""What a user can name in the place of a file, and what a file can hold: rows, or one line, in bounded time."""

import gzip
import json
import os
import tracemalloc
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from retrieval import Passage, UserError, build_index, index_passages, open_index
from retrieval.readers import read_files
from retrieval.reports import ReadReport
from retrieval.splitting import Splitting
from selfrag.common.jsonl import read_jsonl
from selfrag.common.reading import parse_json, read_json, read_lines, read_whole


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def passages(*files):
    return [row.passage for row in read_files(files)]


def one_line(call, *arguments):
    with refused() as caught:
        call(*arguments)
    message = str(caught.value)
    assert 0 < len(message) < 2100
    assert "\n" not in message
    return message


def link(path, target):
    path.symlink_to(target)
    return path


def loop(path):
    link(path.parent / "other", path)
    return link(path, path.parent / "other")


HOSTILE_PATHS = {
    "link loop": loop,
    "below a link loop": lambda path: loop(path) / path.name,
    "NUL": lambda path: f"a\0{path.name}",
    "lone surrogate": lambda path: f"\ud800{path.name}",
    "name too long": lambda path: path.parent / ("n" * 300),
    "path too long": lambda path: path.parent / ("d/" * 3000),
    "pipe": lambda path: os.mkfifo(path) or path,
    "device": lambda path: link(path, "/dev/zero"),
    "no such home": lambda path: f"~no-such-user-here/{path.name}",
    "below a file": lambda path: path.write_text("x") and path / path.name,
    "dangling link": lambda path: link(path, "gone"),
}


@pytest.mark.parametrize("kind", HOSTILE_PATHS)
def test_a_path_where_nothing_can_be_is_one_line(tmp_path, kind, encoder, animals):
    path = HOSTILE_PATHS[kind](tmp_path / "index.jsonl")
    one_line(read_files, [path])
    one_line(lambda: list(read_jsonl(path, dict)))
    one_line(open_index, path, encoder)
    rows = write(tmp_path / "rows.jsonl", '{"id": "a", "text": "b"}')
    one_line(lambda: build_index([rows], tmp_path / "i", encoder=path))
    assert not list(tmp_path.glob("i.*")) + list(tmp_path.glob("i"))
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
TABLES = {
    "a.jsonl": """\ufeff{"id": "1", "text": "He said \\"hi\\",\\nthen left.", "title": "A, b"}

{"id": "x", "title": "", "text": "Ünïcode 京"}\r\n""",
    "a.csv": 'id,title,text\r\n1,"A, b","He said ""hi"",\nthen left."\r\nx,,Ünïcode 京\r\n',
    "a.tsv": 'text\tid\ttitle\n"He said ""hi"",\nthen left."\t1\tA, b\nÜnïcode 京\tx\t\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_all_tables_give_the_same_rows(tmp_path, name):
    content = TABLES[name].encode()
    assert passages(write(tmp_path / name, content)) == WANTED
    assert passages(write(tmp_path / f"{name}.gz", packed(content))) == WANTED


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
        zipped = write(tmp_path / f"{name}.gz", packed(data))
        for file in (write(tmp_path / name, data), zipped):
            first, second = passages(file)
            assert first.text == "Ċ \u0a0d 京 🐝\nno"
            assert second.text == "b"
    for name in ("a.txt", "a.md"):
        file = write(tmp_path / name, "\ufeffA Ċ.\r\n\rB 🐝.".encode(encoding))
        assert read_whole(file) == "A Ċ.\n\nB 🐝."
        assert len(passages(file)) == 1


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"\xef\xbb\xbf"])
def test_a_file_of_nothing_but_a_byte_order_mark_is_empty(tmp_path, data):
    file = write(tmp_path / "a", data)
    assert read_whole(file) == "".join(read_lines(file)) == ""


def utf16(text):
    return ("\ufeff" + text).encode("utf-16-le", "surrogatepass")


def packed(content):
    return gzip.compress(content, mtime=0)  # the same in every process


BAD_FILES = r"""
a.jsonl {"id": "0", "text": "fine"}\n{"id": "1", "text": "t" → :2: not JSON
a.jsonl {"id": "0", "text": "fine"}\n[1] → :2: list where an object
a.jsonl {"id": "0", "text": "fine"}\n{"id": "1"} → :2: no text
a.jsonl {"id": "0", "text": "fine"}\n{"id": "1", "text": 5} → :2: text must be text, not int
a.jsonl {"id": "0", "text": "fine"}\n{"id": "1", "text": "t", "title": ["x"]} → :2: title must be text, not list
a.jsonl {"id": "0", "text": "fine"}\ncaf\xe9 → :2: not UTF-8 (byte 0xe9 at offset 31)
a.jsonl {"id": "1", "text": "a"}\n{"text": "\0"} → :2: a NUL character (byte 0x00 at offset 35)
a.jsonl \n → the file is empty
a.csv  → : the file is empty
a.csv id,text,text\n1,2,3\n → : the header names text more than once
a.csv id,text\n1,a,b\n → :2: 3 fields where the header has 2
a.csv id,text\ncaf\xe9 → :2: not UTF-8 (byte 0xe9 at offset 11)
a.csv id,text\n1,"a" b\n → write a quote twice: ""
a.csv id,text\n1,"a b\n → a quoted field has no end
a.csv id,text\r1,words\r → bare carriage return
a.csv id;text\n1;words\n → separated by semicolons
a.csv id,text\n1,a \x96 b\n → iconv -f cp1252 -t utf-8
a.csv id,text\nca\0fe → :2: a NUL character (byte 0x00 at offset 10)
a.md id,text\ncaf\xe9 → :2: not UTF-8 (byte 0xe9 at offset 11)
a.txt id,text\nca\0fe → :2: a NUL character (byte 0x00 at offset 10)
a.txt  \n → the file is empty
a.html  → : the file is empty
a.parquet no parquet → not a readable Parquet
"""
MUCH = "unpacks to more than 16 MiB"
BAD_CONTENTS = [
    ("a.jsonl", b"\n" + b"[" * 100_000, ":2: JSON that cannot be read"),
    ("a.csv", b"id,text\n1," + b"x" * 200_000, "very long texts are better given as"),
    ("a.csv", utf16("id\ttext\n1\tb\n"), "separated by tabs; name it .tsv"),
    ("a.txt.gz", packed(b"text" * 999)[:-9], "damaged gzip"),
    ("a.txt.gz", packed(b"a" * (20 << 20)), MUCH),
    ("a.csv.gz", packed(b"x" * (20 << 20)), MUCH),
    ("a.csv.gz", packed(utf16("x" * (10 << 20))), MUCH),
    ("a.jsonl.gz", packed((b" " * 65_535 + b"\n") * 320), MUCH),
    *(
        (name, content, fault)
        for name in ("a.csv", "a.md")
        for content, fault in (
            # it is valid UTF-8 with NUL bytes: it would be indexed as words with holes
            ("id,text\n1,words\n".encode("utf-16-le"), "iconv -f utf-16"),
            (utf16("id,text\n1,b\nc,\udc00\n"), ":3: not UTF-16 (U+DC00 is no"),
            (utf16("id,text\n1,b\nc,\0\n"), ":3: not UTF-16 (U+0000 is no"),
            (utf16("id,text\n1,b") + b"x", "not UTF-16 (truncated data)"),
            (utf16("id,text\n1,b\ud800"), ":2: not UTF-16 (U+D800 is no"),
            ("\ufeffid,text".encode("utf-32-le"), "iconv -f utf-32"),
        )
    ),
]
for row in BAD_FILES.split("\n")[1:-1]:
    start, fault = row.split(" → ")
    name, text = start.split(" ", 1)
    content = text.encode().decode("unicode_escape").encode("latin-1")
    BAD_CONTENTS.append((name, content, fault))


@pytest.mark.parametrize(
    "name, content, fault", BAD_CONTENTS, ids=lambda value: str(value)[:30]
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path, name, content, fault):
    """Field audit D21: quotes, carriage returns, semicolons and cp1252, too."""
    message = one_line(passages, write(tmp_path / name, content))
    assert message.startswith(str(tmp_path / name))
    assert fault in message


def test_bad_files_are_named_before_any_row_is_read(tmp_path):
    good = write(tmp_path / "good.txt", "Some text.")
    assert "no files" in one_line(read_files, [])
    assert "no file" in one_line(read_files, [good, tmp_path / "missing.txt"])
    for name, said in (
        ("x.sxw", "no reader for '.sxw'; known: .jsonl"),
        ("x.pdf.gz", "unpack it first"),
    ):
        assert said in one_line(read_files, [good, write(tmp_path / name, "")])


def test_a_long_message_keeps_its_beginning_and_its_end(tmp_path):
    fields = json.dumps(dict.fromkeys(f"field {n}" for n in range(50_000)))
    rows = f'{{"id": "a", "text": "b"}}\n{fields}'
    message = one_line(passages, write(tmp_path / "a.jsonl", rows))
    assert message.startswith(f"{tmp_path}/a.jsonl:2: no text")
    assert message.endswith("field 49999)")


BYTES = st.binary(max_size=60) | st.text(max_size=60).map(
    lambda text: text.encode("utf-8", "replace")
)


@pytest.mark.parametrize(
    "names",
    [("a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz"), ("a.txt", "a.md.gz")],
)
@settings(max_examples=8)  # of each of the names
@given(data=BYTES)
def test_any_bytes_are_rows_or_one_line(tmp_path_factory, names, data):
    folder = tmp_path_factory.mktemp("bytes", numbered=True)
    for name in names:
        texts, said = [], ""
        try:
            texts = [passage.text for passage in passages(write(folder / name, data))]
        except UserError as error:
            said = str(error)
        assert "\n" not in said
        assert all(map(str.strip, texts))


@pytest.mark.parametrize(
    "read, begin, said",
    [
        (lambda file: list(read_lines(file)), b"", "a line of more than 4 MiB"),
        (lambda file: list(read_lines(file)), utf16("x"), "a line of more than 4 MiB"),
        (read_whole, b"", "more than 4 MiB"),
    ],
)
def test_a_line_without_end_is_refused_before_memory_is(
    tmp_path, monkeypatch, read, begin, said
):
    monkeypatch.setattr("selfrag.common.reading._MOST", 1 << 22)
    file = write(tmp_path / "a", begin)
    os.truncate(file, 1 << 40)  # takes no space
    assert said in one_line(read, file)


LINEAR = 8  # of 4 for linear and 16 for quadratic work


def numbered(row, size):
    return "".join(row.replace("N", str(n)) for n in range(size))


@pytest.mark.parametrize(
    "name, make, size",
    [
        ("a.txt", lambda size: utf16("A Ċ. " * size), 10_000),
        ("a.jsonl", partial(numbered, '{"id": "N", "text": "passage N"}\n'), 10_000),
        (
            "a.tsv",
            lambda size: utf16("id\ttext\n" + numbered("N\tpassage N\n", size)),
            10_000,
        ),
        ("a.csv", lambda size: numbered("column N,", size) + "id,text\n1\n", 30_000),
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
    row = '{"id": "N", "text": "' + "word " * 100 + '"}\n'
    path = write(tmp_path / "a.jsonl", numbered(row, 12_000))
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
    files = [write(tmp_path / name, text) for name, text in texts.items()]
    files.append(tmp_path / "missing.txt")
    report = ReadReport()
    rows = list(read_files(files, report=report, skip_unreadable=True))
    assert [row.passage.id for row in rows] == ["town-1", "a"]
    assert report.files == 2
    assert report.passages == 2
    assert report.skipped == []
    reasons = {file.file: file.why.partition(": ")[2] for file in report.unreadable}
    assert reasons.keys() == {str(files[place]) for place in (3, 4, 5)}
    assert reasons[str(files[3])].startswith("not JSON (Expecting ")
    assert reasons[str(files[4])].startswith("no reader for '.png'")
    assert reasons[str(files[5])].startswith("cannot be read: no f")
    assert report.empty == [str(files[1])]
    with refused(r"of 1 file none .*image.png: no reader"):
        list(read_files([files[4], files[1]], skip_unreadable=True))
    with refused(r"image\.png"):
        read_files(files)


def test_d20_a_long_row_becomes_passages_that_know_their_row(tmp_path):
    long = "A word here. " * 200
    row = f'{{"id": "long", "text": "{long}", "year": 1}}'
    short = '{"id": "short", "text": "' + "word " * 400 + '"}'
    file = write(tmp_path / "rows.jsonl", f"{short}\n{row}")
    report = ReadReport()
    first, *parts = read_files([file], Splitting(100, 0), report=report)
    assert first.passage.id == "short"
    assert [part.passage.id for part in parts] == [f"long-{n}" for n in range(1, 8)]
    assert " ".join(part.passage.text for part in parts) == long.strip()
    assert parts[0].metadata == {"year": 1, "row_id": "long"}
    assert report.passages == 8
    assert report.cut_rows == 1


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
    first, second = read_files([file])
    assert first.passage == Passage("1", "one", "T")
    assert first.metadata == {"kind": "k"}
    assert second.passage == Passage("2", "two")
    assert second.metadata == {"year": 2.5}
    for changes, said in (
        ({"text": [["a"], ["b"]]}, "the column text must hold text, not list"),
        ({"text": [b"a", b"b"]}, "the column text must hold text, not binary"),
        (
            dict.fromkeys(map(str, range(1000)), (1, 2)),
            "1005 columns; keep id, title, text and at most 997 others",
        ),
    ):
        parquet.write_table(pa.table(values | changes), file)
        assert said in one_line(passages, file)


def test_a_table_without_text_is_read_row_by_row(tmp_path):
    """Issue 61, section 3: a table of customers was refused."""
    customers = "name,city,since\nAnn,Oslo,2020\nBob,,2021\n"
    file = write(tmp_path / "customers.csv", customers)
    first, second = read_files([file])
    assert first.passage == Passage("customers-1", "name: Ann, city: Oslo, since: 2020")
    assert second.passage.text == "name: Bob, since: 2021"
    assert second.metadata == {"row": 2, "name": "Bob", "since": "2021"}
    people = '{"name": "Ann", "age": 7}\n{"name": "Bob"}\n'
    texts = [row.text for row in passages(write(tmp_path / "people.jsonl", people))]
    assert texts == ["name: Ann, age: 7", "name: Bob"]
    chosen = Splitting(text_column="city", title_column="name", id_column="since")
    rows = read_files([file], chosen)
    assert next(rows).passage == Passage("2020", "Oslo", "Ann")
    with refused("text is empty"):
        next(rows)


@pytest.mark.parametrize("role", ["text", "title", "id"])
def test_a_column_that_a_table_does_not_have_is_refused_with_those_it_has(
    tmp_path, role
):
    write(tmp_path / "a.csv", "name,city\nAnn,Oslo\n")
    splitting = Splitting(**{f"{role}_column": "town"})
    with refused(f"no column 'town' for the {role}; .* city"):
        list(read_files([tmp_path / "a.csv"], splitting))
