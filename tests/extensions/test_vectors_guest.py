"""Published vectors make an index without encoding, hostile shards run nothing, and an export can be read again."""

import os
import pickle
import struct
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
from selfrag.cli.main import main
from selfrag.extensions.vectors.export import export_index
from selfrag.extensions.vectors.files import PublishedVectors

PASSAGES = [
    Passage(f"p{n}", f"text {n % 7} number {n}", f"Title {n % 5}") for n in range(2_500)
]


IDS = [passage.id for passage in PASSAGES]


def vectors_of(encoder):
    return encoder.encode(
        [f"{passage.title} {passage.text}" for passage in PASSAGES]
    ).astype(np.float32)


def shards(folder, matrix, protocol=4):
    """As Contriever writes them: three files of different sizes, the last one short."""
    paths = [folder / f"passages_{number:02}" for number in range(3)]
    for path, part in zip(
        paths, (slice(0, 1_500), slice(1_500, 2_495), slice(2_495, None)), strict=True
    ):
        path.write_bytes(pickle.dumps((IDS[part], matrix[part]), protocol))
    return paths


def npy(folder, matrix, _):
    np.save(folder / "vectors.npy", matrix)
    return [folder / "vectors.npy"]


def table(folder, matrix, _):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])
    parquet.write_table(
        pa.table({"id": IDS, "vector": lists}), folder / "v.parquet", row_group_size=700
    )
    return [folder / "v.parquet"]


@pytest.mark.parametrize(
    "write, dtype, protocol",
    [
        *(
            (shards, dtype, protocol)
            for dtype, protocol in (("<f4", 3), ("<f2", 4), (">f4", 5))
        ),
        (npy, "<f8", 0),
        (table, "<f4", 0),
    ],
)
def test_an_index_of_published_vectors_is_that_of_the_encoder(
    tmp_path, make_encoder, write, dtype, protocol
):
    encoder = make_encoder()
    matrix = vectors_of(encoder).astype(dtype)
    files = write(tmp_path, matrix, protocol)
    encoder.texts.clear()
    imported = index_passages(
        PASSAGES,
        tmp_path / "index",
        encoder=encoder,
        vectors=PublishedVectors(files),
        storage="float32",
    )
    assert encoder.texts == []
    stored = np.load(tmp_path / "index" / "vectors.npy")
    np.testing.assert_array_equal(stored, matrix.astype(np.float32))
    assert imported(["number 77"], 3) == open_index(tmp_path / "index", encoder)(
        ["number 77"], 3
    )


def test_an_interrupted_import_ends_with_the_same_bytes(
    tmp_path, make_encoder, monkeypatch
):
    append = GrowingMatrix.append
    left = [100]  # blocks that are written before the import is interrupted

    def interrupted(self, block):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        append(self, block)

    monkeypatch.setattr(GrowingMatrix, "append", interrupted)
    encoder = make_encoder()
    files = shards(tmp_path, vectors_of(encoder))
    index_passages(
        PASSAGES, tmp_path / "whole", encoder=encoder, vectors=PublishedVectors(files)
    )
    for left[0] in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            index_passages(
                PASSAGES,
                tmp_path / "index",
                encoder=encoder,
                vectors=PublishedVectors(files),
            )
    left[0] = 1  # all that is missing
    index_passages(
        PASSAGES, tmp_path / "index", encoder=encoder, vectors=PublishedVectors(files)
    )
    expected, index = (
        (tmp_path / name / "vectors.npy").read_bytes() for name in ("whole", "index")
    )
    assert expected == index


class Evil:
    """Would make a folder when unpickled."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


HOSTILE = {
    "a call": lambda path: pickle.dumps((["a"], Evil(path))),
    "a name": lambda _: b"\x80\x03cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    "nothing": lambda _: b"",
    "a list": lambda _: pickle.dumps((["a"], [1.0])),
    "two rows": lambda _: pickle.dumps((["a"], np.zeros((2, 3), np.float32))),
    "objects": lambda _: pickle.dumps((["a"], np.array([[object()]]))),
    "half": lambda _: pickle.dumps((IDS, np.zeros((len(IDS), 8), np.float32)))[:-4_000],
    "a length beyond the file": lambda _: (
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x."
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_or_damaged_shard_is_one_line_and_runs_nothing(tmp_path, kind):
    made = tmp_path / "made"
    (tmp_path / "passages_00").write_bytes(HOSTILE[kind](made))
    with refused("passages_00: "):
        PublishedVectors([tmp_path / "passages_00"])
    assert not made.exists()


def test_vectors_that_do_not_belong_to_the_passages_are_refused(tmp_path, make_encoder):
    encoder = make_encoder()
    matrix = vectors_of(encoder)

    def refuse(files, said):
        with refused(said):
            index_passages(
                PASSAGES,
                tmp_path / "index",
                encoder=encoder,
                vectors=PublishedVectors(files),
            )
        assert not (tmp_path / "index").exists()

    np.save(tmp_path / "few.npy", matrix[:-1])
    refuse([tmp_path / "few.npy"], "2,499 vectors for 2,500 passages")
    np.save(tmp_path / "narrow.npy", matrix[:, :-1])
    refuse([tmp_path / "narrow.npy"], "vectors of 31, the encoder makes 32")
    refuse(
        [tmp_path / "few.npy", tmp_path / "narrow.npy"],
        "vectors of 31, those before have 32",
    )
    wrong = matrix.copy()
    wrong[1_700, 3] = np.nan
    np.save(tmp_path / "nan.npy", wrong)
    refuse([tmp_path / "nan.npy"], "row 1701 holds values that are not finite")
    files = shards(tmp_path, matrix)
    refuse(files[::-1], "passages_02: row 1 has the id 'p2495', passage 1 is 'p0'")
    refuse([], "no files of vectors")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "few.npy").read_bytes()[:400])
    refuse([tmp_path / "cut.npy"], "no readable .npy file")
    parquet.write_table(
        pa.table({"vector": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet"
    )
    refuse([tmp_path / "ragged.parquet"], "lists of floats, all of one length")


@pytest.mark.parametrize("vectors", [False, True])
def test_an_export_makes_the_same_index_again(tmp_path, make_encoder, vectors):
    encoder = make_encoder()
    rows = [
        Row(
            exported,
            Place("x", 1),
            {"year": 2000 + n % 9, "lang": "en"} if n % 3 else {},
        )
        for n, exported in enumerate(PASSAGES)
    ]
    index_passages(rows[:2_400], tmp_path / "index", encoder=encoder)
    add_passages(tmp_path / "index", rows[2_400:], encoder=encoder)
    remove_passages(tmp_path / "index", ["p7", "p2450"])
    assert (
        export_index(tmp_path / "index", tmp_path / "out.parquet", vectors=vectors)
        == 2_498
    )
    encoder.texts.clear()
    options = (
        {"vectors": PublishedVectors([tmp_path / "out.parquet"])} if vectors else {}
    )
    again = build_index(
        [tmp_path / "out.parquet"], tmp_path / "again", encoder=encoder, **options
    )
    assert (len(encoder.texts) == 0) == vectors
    live = [rows[n] for n in range(2_500) if n not in (7, 2_450)]
    original = index_passages(live, tmp_path / "whole", encoder=encoder)
    ours, theirs = load_manifest(tmp_path / "again"), load_manifest(tmp_path / "whole")
    assert ours.corpus == theirs.corpus
    assert (tmp_path / "again" / "vectors.npy").read_bytes() == (
        tmp_path / "whole" / "vectors.npy"
    ).read_bytes()
    query = ["text 3 number 1200"]
    hits, expected = (
        retriever.where("year>=2005")(query, 5)[0] for retriever in (again, original)
    )
    assert [(passage.id, passage.score) for passage in hits] == [
        (passage.id, passage.score) for passage in expected
    ]


def test_an_export_leaves_nothing_half_written(tmp_path, index):
    with refused():
        export_index(index, tmp_path / "no" / "folder" / "out.parquet")
    with refused():
        export_index(tmp_path, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_d20_each_given_vector_has_a_whole_row(
    tmp_path, tiny_bert, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in ("long", "more"):
        write_json(Path(f"{name}.jsonl"), {"id": name, "text": "word " * 600})
    np.save("vectors.npy", np.ones((1, 16), np.float32))
    build = [
        "build",
        "long.jsonl",
        "-o",
        "whole",
        "--vectors",
        "vectors.npy",
        "--row-words",
        "9",
    ]
    assert main(["index", *build, "--encoder", str(tiny_bert)]) == 0
    capsys.readouterr()
    assert main(["index", "add", "whole", "more.jsonl"]) == 0
    assert capsys.readouterr().out == "1 passage added to whole\n"
