"""What a user can name in the place of a file, and what a file can hold: one line each, and no waiting."""

import gzip
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import UserError, build_index, index_passages, open_index
from retrieval.readers import read_files
from retrieval.reading import parse_json, read_json, read_lines, read_whole
from selfrag.jsonl import read_jsonl


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


def pipe(folder, name):
    os.mkfifo(folder / name)
    return folder / name


HOSTILE_PATHS = {
    "link loop": loop,
    "below a link loop": lambda folder, name: loop(folder, f"loop-{name}") / name,
    "NUL": lambda folder, name: f"a\0{name}",
    "lone surrogate": lambda folder, name: f"\ud800{name}",
    "name too long": lambda folder, name: folder / ("n" * 300 + name),
    "path too long": lambda folder, name: folder / ("d/" * 3000 + name),
    "pipe": pipe,
    "device": lambda folder, name: (folder / name).symlink_to("/dev/zero") or folder / name,
    "no such home": lambda folder, name: f"~no-such-user-here/{name}",
    "below a file": lambda folder, name: (folder / "f").write_text("x") and folder / "f" / name,
    "dangling link": lambda folder, name: (folder / name).symlink_to(folder / "gone") or folder / name,
}


@pytest.mark.parametrize("kind", HOSTILE_PATHS)
def test_a_path_where_nothing_can_be_is_one_line(tmp_path, kind, encoder, animals, tiny_bert):
    path = HOSTILE_PATHS[kind](tmp_path, "index.jsonl")
    one_line(read_files, [path])
    one_line(lambda: list(read_jsonl(path, dict)))
    one_line(open_index, path, encoder)
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "text": "b"}')
    one_line(lambda: build_index([tmp_path / "rows.jsonl"], tmp_path / "i", encoder=path))
    assert not (tmp_path / "i").exists()
    assert not (tmp_path / "i.building").exists()
    if kind != "dangling link":
        before = sorted(tmp_path.iterdir())
        one_line(lambda: index_passages(animals, path, encoder=encoder))
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "fault"),
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


TABLES, DOCUMENTS = ("a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz"), ("a.txt", "a.md.gz")
BYTES = st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))


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


def test_text_with_nul_bytes_is_no_text(tmp_path):
    """UTF-16 of plain letters is valid UTF-8 with NUL bytes: it would be indexed as words with holes."""
    for name in ("a.txt", "a.csv", "a.jsonl"):
        (tmp_path / name).write_bytes("id,text\n1,words\n".encode("utf-16-le"))
        assert "iconv -f utf-16" in one_line(lambda name=name: list(read_files([tmp_path / name])))


def test_a_gzip_file_that_unpacks_to_far_more_is_refused(tmp_path):
    for name, line in (("a.jsonl.gz", b" " * 65_535 + b"\n"), ("a.txt.gz", b"a"), ("a.csv.gz", b"x")):
        with gzip.open(tmp_path / name, "wb") as file:
            for _ in range(20):
                file.write(line * ((1 << 20) // len(line)))
        assert "unpacks to more than 16 MiB" in one_line(lambda name=name: list(read_files([tmp_path / name])))


def test_a_line_without_end_is_refused_before_memory_is(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.reading._MOST", 1 << 22)
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.truncate(1 << 40)  # takes no space
    assert "a line of more than 4 MiB" in one_line(lambda: list(read_lines(tmp_path / "a.jsonl")))
    (tmp_path / "a.jsonl").rename(tmp_path / "a.txt")
    assert "more than 4 MiB" in one_line(read_whole, tmp_path / "a.txt")


def test_a_long_message_keeps_its_beginning_and_its_end(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({f"field {n}": 1 for n in range(50_000)}))
    message = one_line(lambda: list(read_files([tmp_path / "a.jsonl"])))
    assert message.startswith(f"{tmp_path / 'a.jsonl'}:1: no id")
    assert message.endswith("field 49999)")


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(tmp_path / "a.json") == [1]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r")
    assert read_whole(tmp_path / "a.txt") == "a\nb\n"
