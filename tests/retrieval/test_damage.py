"""An index is what its files hold: one that was edited, swapped or damaged is refused, whatever was changed."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from json_files import read_json, write_json
from refusals import refused
from tables import each

from retrieval import Passage, add_passages, index_passages, open_index, remove_passages
from retrieval.corpus import Place, Row
from retrieval.faiss_files import empty_index
from retrieval.index import load_manifest
from retrieval.vectors import FlatIndex


def message_of(index, encoder):
    with refused() as caught:
        open_index(index, encoder)
    message = str(caught.value)
    assert str(index) in message
    return message


def test_a_file_that_vanishes_while_an_index_is_opened_is_left_alone(
    index, encoder, monkeypatch
):
    """Another process writes the words of a new generation through temporary files."""
    is_file = Path.is_file

    def vanishes(path):
        there = is_file(path)
        if path.name == "temporary":
            path.unlink()
        return there

    (index / "temporary").touch()
    monkeypatch.setattr(Path, "is_file", vanishes)
    assert len(open_index(index, encoder).corpus) == 5


def edit(file, changes):
    """Change values of a manifest, which no longer says what it is; `a/b` is the value b of a."""
    values = read_json(file) | {"digest": ""}
    for name, value in changes.items():
        inner, _, last = name.partition("/")
        if last:
            values[inner][last] = value
        else:
            values[name] = value
    write_json(file, values)


def test_passages_changed_in_their_place_are_found(index, encoder, animals):
    """The same number of bytes, and every size right: only the content differs."""
    file = index / "corpus" / "passages.arrow"
    file.write_bytes(file.read_bytes().replace(b"honey", b"money"))
    said = "corpus/passages.arrow is not as it was written"
    assert said in message_of(index, encoder)
    # as in a manifest of an older version
    edit(index / "manifest.json", {"checksums": {}})
    assert "other passages than were written" in message_of(index, encoder)
    # the advice, "build it again", works
    index_passages(animals, index, encoder=encoder)
    assert open_index(index, encoder)(["honey"], 1)[0][0].id == "bee"


CHANGES = """
{"passages": 4}
{"passages": "4"}
{"passages": null}
{"encoder/dim": 7}
{"encoder": 2.5}
{"encoder": {"name": "words"}}
{"template/query": "{text}"}
{"files": {}}
{"files": null}
{"files/../../etc/passwd": 1}
{"added": "4"}
{"added": [{"name": "../other", "passages": 5, "corpus": ""}]}
{"added": [{"name": "/etc", "passages": 5, "corpus": ""}]}
{"added": [{"name": "parts/../../other", "passages": 5, "corpus": ""}]}
{"added": [{"name": "", "passages": 5, "corpus": ""}]}
"""


@each("changes", CHANGES)
def test_a_changed_manifest_is_not_believed_also_where_what_it_says_of_itself_fits(
    index, encoder, changes
):
    edit(index / "manifest.json", json.loads(changes))
    message = message_of(index, encoder)
    assert '"name": ' not in changes or "words" in changes or FOLDER in message


FOLDER = "is not the folder of a segment"


def test_a_manifest_that_was_changed_by_hand_is_not_believed(index, encoder):
    for file in ("manifest.json", "corpus/manifest.json"):
        whole = index / file
        good = whole.read_bytes()
        write_json(whole, read_json(whole) | {"passages": 6})
        said = message_of(index, encoder)
        assert ("was changed after it was written" in said) == (file == "manifest.json")
        whole.write_bytes(good)
    write_json(whole, read_json(whole) | {"digest": "f" * 32})
    message_of(index, encoder)


def test_vectors_that_are_no_numbers_or_of_another_shape_are_found(index, encoder):
    file = index / "vectors.npy"
    good = np.load(file)
    bad = good.copy()
    bad[2, 3] = np.nan
    fortran, big = np.asfortranarray(good), good.view(">f4")
    for vectors in (bad, good[:4], good[:, :8], fortran, big, good[0]):
        np.save(file, vectors)
        edit(index / "manifest.json", {"files/vectors.npy": file.stat().st_size})
        message_of(index, encoder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_encoder):
    """An index with all that one can hold, and its encoder."""
    encoder, index = make_encoder(), tmp_path_factory.mktemp("whole") / "index"
    rows = [
        Row(Passage(f"p{n}", f"honey {n}"), Place("x", n), {"year": n})
        for n in range(300)
    ]
    index_passages(rows, index, encoder=encoder, kind="rabitq")
    add_passages(index, [Passage("new", "honey")], encoder=encoder)
    remove_passages(index, ["p7"])
    return index, encoder


PARTS = "-segment/ -removed.npy -dense.faiss -words/ metadata.arrow"
DAMAGE = (
    lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    lambda content: content[: len(content) // 2],
    lambda content: bytes(len(content)),
    lambda _: b"",
    lambda _: b"[" * 100_000,
    lambda _: b"null",
    lambda _: b"{}",
)


def test_something_else_in_the_place_of_any_file(tmp_path, whole):
    index, encoder = tmp_path / "index", whole[1]
    shutil.copytree(whole[0], index)
    names = ["manifest.json", *load_manifest(index).files]
    for part in PARTS.split():
        assert any(part in name for name in names)
    for file in (index / name for name in names):
        good = file.read_bytes()
        for damage in DAMAGE:
            file.write_bytes(damage(good))
            if file.name != "manifest.json" or damage is not DAMAGE[0]:
                message_of(index, encoder)
        if file != index / "manifest.json":
            file.write_bytes(good + b"\0")
            assert "half-written" in message_of(index, encoder)
        file.unlink()
        assert "half-written" in message_of(index, encoder)
        file.mkdir()
        message_of(index, encoder)
        file.rmdir()
        file.write_bytes(good)
    assert open_index(index, encoder)(["honey"], 1)[0]


CRAFTED = """
import sys
from pathlib import Path
import numpy as np
from retrieval.compressed import CompressedIndex, build_compressed
from retrieval.vectors import factory_of
from selfrag.common.errors import UserError
from retrieval.vectors import FlatIndex

random = np.random.default_rng(0)
vectors = FlatIndex(random.standard_normal((600, 32)).astype(np.float32))
queries = random.standard_normal((3, 32)).astype(np.float32)
file = Path(sys.argv[1])
refused = 0
for kind in ("rabitq", "ivf"):
    card = build_compressed(vectors, factory_of(kind, 600, 32), file, progress=False)
    good = file.read_bytes()
    # Headers: to the size of the codes; of the lists and of their quantizer; of each list.
    tags = [(608 * 12).to_bytes(8, "little")] if kind == "rabitq" else [b"Iwrn", b"ilbl"]
    places = [good.index(tag) + offset for tag in tags for offset in range(-36, 44, 4)]
    for number, place in enumerate(places):
        damage = bytes([255 * (number % 2)] * 8)
        file.write_bytes(good[:place] + damage + good[place + 8:])
        try:
            CompressedIndex.open(file, vectors, card).search(queries, 5)
        except UserError as error:
            refused += "\\n" not in str(error)
print(refused)
"""


def test_crafted_faiss_files_end_in_one_line_and_never_in_a_crash(tmp_path, process):
    """In a process of its own, which a crash would end."""
    done = process(sys.executable, "-c", CRAFTED, tmp_path / "dense.faiss")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.parametrize(
    "header",
    ["(" * 90, "{'descr': '<f4', 'shape': (0, 8)", "[" * 9000, "{'shape': (9, 1e9)}"],
)
def test_crafted_vector_files_end_in_one_line(tmp_path, header):
    file = tmp_path / "vectors.npy"
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    file.write_bytes(head + header.encode() + bytes(64))
    with refused("not a readable vector file"):
        FlatIndex.open(file)


@pytest.mark.parametrize(
    "factory", ["HNSW0", "PQ0", "PQ32x24", "IVF4," * 60 + "Flat", "IVF999999999,Flat"]
)
def test_a_factory_string_of_a_crafted_manifest_takes_no_memory(factory):
    with refused("kind="):
        empty_index(factory, 32, 600)


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes")
def test_files_of_an_index_have_the_modes_that_the_umask_gives(whole):
    """Nobody else may write them, and others may read them: temporary files begin with the mode 0600."""
    umask = os.umask(0o022)
    os.umask(umask)
    for path in (whole[0], *whole[0].rglob("*")):
        usual = 0o777 if path.is_dir() else 0o666
        assert stat.S_IMODE(path.stat().st_mode) == usual & ~umask, path
