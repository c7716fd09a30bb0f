"""Time grows as the input does, whatever it is made of, and memory does not follow a file that is read row by row."""

import json
import tracemalloc

import numpy as np
import pytest

from retrieval import Passage, UserError, index_passages
from retrieval.documents import markdown_sections
from retrieval.encoders import EncoderCard
from retrieval.readers import read_files
from retrieval.splitting import Splitting, sentence_finder, split

LINEAR = 8  # of 4 for linear and 16 for quadratic work
FIND = sentence_finder()


class Lengths:
    """Vectors from the length and the last word of a text: an encoder that costs nothing beside what is measured."""

    card = EncoderCard("lengths", "1", 8)

    def encode(self, texts, batch_size=64):
        rows = [[len(text) % prime for prime in (2, 3, 5, 7, 11, 13, 17)] + [ord(text[-1])] for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 8) + 1


def repeated(piece):
    return lambda size: (piece * (size // len(piece) + 1))[:size]


@pytest.mark.parametrize("piece", ["A b c. ", "x", "a\n \n", "京"])
def test_splitting(growth, piece):
    assert growth(repeated(piece), lambda text: split(text, Splitting(20, 3), FIND), 40_000) < LINEAR


@pytest.mark.parametrize("piece", ["[", "*a_ ", "# a\n", "> a\n", "[a]: b\n"])
def test_markdown(growth, piece):
    size = 6_000 if "\n" in piece else 20_000
    assert growth(repeated(piece), lambda text: markdown_sections(text, "doc"), size) < LINEAR
    if "\n" not in piece:
        heading = repeated(piece)
        assert growth(lambda size: "# " + heading(size), lambda text: markdown_sections(text, "doc"), size) < LINEAR


def test_a_long_heading_is_not_repeated_with_every_passage(tmp_path):
    (tmp_path / "a.md").write_text("# " + "heading " * 20_000 + "\n\n" + "A short sentence. " * 5000)
    rows = [row.passage for row in read_files([tmp_path / "a.md"])]
    assert sum(len(row.text) + len(row.title) for row in rows) < 600_000
    assert sum(row.text.count("heading") for row in rows) >= 20_000


def jsonl(tmp_path, rows, words=20):
    path = tmp_path / f"{rows}-{words}.jsonl"
    with path.open("w") as file:
        file.writelines(
            json.dumps({"id": f"p{n}", "text": f"passage {n} " + "word " * words}) + "\n" for n in range(rows)
        )
    return path


def test_rows_and_documents(growth, tmp_path):
    assert growth(lambda size: jsonl(tmp_path, size), lambda path: sum(1 for _ in read_files([path])), 10_000) < LINEAR

    def document(size):
        (tmp_path / f"{size}.txt").write_text("Some words in a sentence. " * size)
        return tmp_path / f"{size}.txt"

    assert growth(document, lambda path: list(read_files([path])), 4000) < LINEAR


@pytest.mark.slow
@pytest.mark.parametrize("text", ["id,text,{}\n", "{},id,text\n1\n"])
def test_a_header_of_many_columns(growth, tmp_path, text):
    def table(size):
        (tmp_path / f"{size}.csv").write_text(text.format(",".join(f"column {n}" for n in range(size))))
        return tmp_path / f"{size}.csv"

    def read(path):
        with pytest.raises(UserError):
            list(read_files([path]))

    assert growth(table, read, 30_000) < LINEAR


@pytest.mark.slow
def test_ten_thousand_passages_are_indexed_and_searched(growth, tmp_path):
    def build(passages):
        index = index_passages(passages, tmp_path / f"i{len(passages)}-{id(passages)}", encoder=Lengths())
        assert len(index(["passage 7"] * 50, len(passages))[0]) == len(passages)

    def make(size):
        return [Passage(f"p{n}", f"passage {n} " + "word " * 40) for n in range(size)]

    assert growth(make, build, 2500) < LINEAR


def test_rows_are_read_without_holding_the_file(tmp_path):
    path = jsonl(tmp_path, 12_000, 100)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_files([path])) == 12_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 6_000_000
    assert peak < 2_000_000
