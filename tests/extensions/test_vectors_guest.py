"""Published vectors make an index without encoding, hostile shards run nothing, and an export can be read again."""

import os
import pickle
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from json_files import write_json
from pyarrow import parquet
from refusals import refused

from retrieval import (
    Passage,
    add_passages,
    build_index,
    index_passages,
    open_index,
    remove_passages,
)
from retrieval.corpus import Place, Row
from retrieval.index import load_manifest
from retrieval.vector_writing import GrowingMatrix
from selfrag.extensions.vectors.export import export_index
from selfrag.extensions.vectors.files import PublishedVectors

PASSAGES = [
    Passage(f"p{n}", f"text {n % 7} number {n}", f"Title {n % 5}") for n in range(2_500)
]


IDS = [passage.id for passage in PASSAGES]


def vectors_of(encoder):
    texts = [f"{passage.title} {passage.text}" for passage in PASSAGES]
    return encoder.encode(texts).astype(np.float32)


@pytest.fixture
def published(tmp_path, encoder):
    """Makes an index of published vectors in a folder; the encoder made them, and has forgotten it."""

    def make(files, name="index", **options):
        vectors = PublishedVectors(files)
        return index_passages(
            PASSAGES, tmp_path / name, encoder=encoder, vectors=vectors, **options
        )

    return make


def shards(folder, matrix, protocol=4):
    """As Contriever writes them: three files of different sizes, the last one short."""
    paths = [folder / f"passages_{number:02}" for number in range(3)]
    ends = (0, 1_500, 2_495, 2_500)
    for path, (start, end) in zip(paths, pairwise(ends), strict=True):
        part = (IDS[start:end], matrix[start:end])
        path.write_bytes(pickle.dumps(part, protocol))
    return paths


def npy(folder, matrix, _):
    np.save(folder / "vectors.npy", matrix)
    return [folder / "vectors.npy"]


def table(folder, matrix, _):
    rows = pa.table({"id": IDS, "vector": list(matrix)})
    parquet.write_table(rows, folder / "v.parquet", row_group_size=700)
    return [folder / "v.parquet"]


@pytest.mark.parametrize(
    "write, dtype, protocol",
    [
        (shards, "<f4", 3),
        (shards, "<f2", 4),
        (shards, ">f4", 5),
        (npy, "<f8", 0),
        (table, "<f4", 0),
    ],
)
def test_an_index_of_published_vectors_is_that_of_the_encoder(
    tmp_path, encoder, published, write, dtype, protocol
):
    matrix = vectors_of(encoder).astype(dtype)
    files = write(tmp_path, matrix, protocol)
    encoder.texts.clear()
    imported = published(files, storage="float32")
    assert encoder.texts == []
    stored = np.load(tmp_path / "index" / "vectors.npy")
    np.testing.assert_array_equal(stored, matrix.astype(np.float32))
    query = ["number 77"], 3
    assert imported(*query) == open_index(tmp_path / "index", encoder)(*query)


def test_an_interrupted_import_ends_with_the_same_bytes(
    tmp_path, encoder, published, monkeypatch
):
    append = GrowingMatrix.append
    left = [100]  # blocks that are written before the import is interrupted

    def interrupted(self, block):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        append(self, block)

    monkeypatch.setattr(GrowingMatrix, "append", interrupted)
    files = shards(tmp_path, vectors_of(encoder))
    published(files, "whole")
    for left[0] in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            published(files)
    left[0] = 1  # all that is missing
    published(files)
    expected, index = (
        (tmp_path / name / "vectors.npy").read_bytes() for name in ("whole", "index")
    )
    assert expected == index


class Evil:
    """Would make a folder when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("made",)


HOSTILE = {
    "a call": (["a"], Evil()),
    "a name": b"\x80\x03cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    "nothing": b"",
    "a list": (["a"], [1.0]),
    "two rows": (["a"], np.zeros((2, 3), np.float32)),
    "objects": (["a"], np.array([[object]])),
    "half": pickle.dumps((IDS, np.zeros((2_500, 8), np.float32)))[:-4_000],
    "a length beyond the file": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_or_damaged_shard_is_one_line_and_runs_nothing(
    tmp_path, monkeypatch, kind
):
    monkeypatch.chdir(tmp_path)
    content = HOSTILE[kind]
    shard = content if isinstance(content, bytes) else pickle.dumps(content)
    Path("passages_00").write_bytes(shard)
    with refused("passages_00: "):
        PublishedVectors([Path("passages_00")])
    assert not Path("made").exists()


def test_vectors_that_do_not_belong_to_the_passages_are_refused(
    tmp_path, encoder, published
):
    matrix = vectors_of(encoder)

    def refuse(said, *matrices):
        files = []
        for number, array in enumerate(matrices):
            files.append(tmp_path / f"{number}.npy")
            np.save(files[-1], array)
        refuse_files(said, files)

    def refuse_files(said, files):
        with refused(said):
            published(files)
        assert not (tmp_path / "index").exists()

    few, narrow = matrix[:-1], matrix[:, :-1]
    refuse("2,499 vectors for 2,500 passages", few)
    refuse("vectors of 31, the encoder makes 32", narrow)
    refuse("vectors of 31, those before have 32", few, narrow)
    wrong = matrix.copy()
    wrong[1_700, 3] = np.nan
    refuse("row 1701 holds values that are not finite", wrong)
    refuse("no files of vectors")
    files = shards(tmp_path, matrix)
    message = "passages_02: row 1 has the id 'p2495', passage 1 is 'p0'"
    refuse_files(message, files[::-1])
    files[0].rename(tmp_path / "cut.npy")
    refuse_files("no readable .npy file", [tmp_path / "cut.npy"])


@pytest.mark.parametrize("vectors", [False, True])
def test_an_export_makes_the_same_index_again(tmp_path, encoder, vectors):
    rows = [
        Row(exported, Place("x", 1), {"year": 2000 + n % 9} if n % 3 else {})
        for n, exported in enumerate(PASSAGES)
    ]
    index, file = tmp_path / "index", tmp_path / "out.parquet"
    index_passages(rows[:2_400], index, encoder=encoder)
    add_passages(index, rows[2_400:], encoder=encoder)
    remove_passages(index, ["p7", "p2450"])
    assert export_index(index, file, vectors=vectors) == 2_498
    encoder.texts.clear()
    options = {"vectors": PublishedVectors([file])} if vectors else {}
    again = build_index([file], tmp_path / "again", encoder=encoder, **options)
    assert (encoder.texts == []) == vectors
    del rows[2_450], rows[7]
    original = index_passages(rows, tmp_path / "whole", encoder=encoder)
    digests, matrices = set(), set()
    for name in ("again", "whole"):
        digests.add(load_manifest(tmp_path / name).corpus)
        matrices.add((tmp_path / name / "vectors.npy").read_bytes())
    assert len(digests) == len(matrices) == 1
    query = ["text 3 number 1200"], 5
    hits, expected = (
        retriever.where("year>=2005")(*query)[0] for retriever in (again, original)
    )
    assert hits == expected


def test_an_export_leaves_nothing_half_written(tmp_path, index):
    with refused():
        export_index(index, tmp_path / "no" / "folder" / "out.parquet")
    with refused():
        export_index(tmp_path, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_d20_each_given_vector_has_a_whole_row(
    tmp_path, tiny_bert, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    for name in ("long", "more"):
        write_json(Path(f"{name}.jsonl"), {"id": name, "text": "word " * 600})
    np.save("vectors.npy", np.ones((1, 16), np.float32))
    build = (
        "selfrag index build long.jsonl -o whole --vectors vectors.npy --row-words 9"
    )
    command(f"{build} --encoder {tiny_bert}")
    out, _ = command("selfrag index add whole more.jsonl")
    assert out == "1 passage added to whole\n"
