"""An index is what its files hold: a manifest that was edited, swapped or damaged is refused, whatever was changed."""

import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Corpus, UserError, index_passages, open_index
from retrieval.index import load_manifest
from retrieval.manifests import record


@pytest.fixture
def index(tmp_path, animals, encoder):
    index_passages(animals, tmp_path / "index", encoder=encoder)
    return tmp_path / "index"


def refused(index, encoder):
    with pytest.raises(UserError) as caught:
        open_index(index, encoder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(index) in message
    return message


def edit(file, *, sealed=False, **changes):
    """Change values of a manifest; sealed: also what it says about itself."""
    values = json.loads(file.read_text())
    for name, value in changes.items():
        inner, _, last = name.rpartition("__")
        (values[inner] if inner else values)[last] = value
    if sealed:
        values["digest"] = ""
    file.write_text(json.dumps(values))


def line_or_value(call):
    """What a call returns, or the one line by which it refuses."""
    try:
        return call()
    except UserError as error:
        return str(error)


EDITS = [
    {"passages": -1},
    {"passages": 4},
    {"passages": 10**400},
    {"passages": "5"},
    {"passages": 5.0},
    {"passages": True},
    {"corpus": "0" * 32},
    {"metric": "cosine"},
    {"metric": ["inner_product"]},
    {"kind": "hnsw"},
    {"kind": {}},
    {"encoder__dim": 7},
    {"encoder__dim": 0},
    {"encoder__dim": "32"},
    {"encoder__pooling": "cls"},
    {"encoder__normalized": True},
    {"encoder__max_tokens": 5},
    {"encoder__fingerprint": "words-2"},
    {"encoder": None},
    {"encoder": []},
    {"template__query": "{text}"},
    {"template": {"passage": 5}},
    {"files": {}},
    {"files": None},
    {"files__vectors.npy": 1},
    {"files__../../etc/passwd": 1},
    {"files__" + "n" * 5000: 1},
    {"files__a\0b": 0},
    {"versions": 3},
    {"unknown": 1},
    {"format": None},
]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("changes", EDITS, ids=lambda changes: str(changes)[:40])
def test_an_edited_manifest_is_not_believed(index, encoder, changes, sealed):
    edit(index / "manifest.json", sealed=sealed, **changes)
    refused(index, encoder)


def test_the_template_of_an_index_cannot_be_changed_unseen(index, encoder):
    edit(index / "manifest.json", template__query="passage: {query}")
    assert "was changed after it was written" in refused(index, encoder)


def test_an_index_of_an_older_version_opens_and_one_whose_encoder_moved_can_say_so(index, encoder):
    edit(index / "manifest.json", sealed=True)
    assert open_index(index, encoder)(["honey"], 1)[0][0].id == "bee"
    values = json.loads((index / "manifest.json").read_text())
    del values["digest"]
    values["encoder"]["source"] = "/moved/away"
    (index / "manifest.json").write_text(json.dumps(values))
    assert open_index(index, encoder)(["honey"], 1)[0][0].id == "bee"


def test_passages_changed_in_their_place_are_found(index, encoder, animals):
    """The same number of bytes, and every size right: only the content differs."""
    file = index / "corpus" / "passages.arrow"
    file.write_bytes(file.read_bytes().replace(b"honey", b"money"))
    assert "corpus/passages.arrow is not as it was written" in refused(index, encoder)
    edit(index / "manifest.json", sealed=True, checksums={})  # as in a manifest of an older version
    assert "other passages than were written" in refused(index, encoder)
    index_passages(animals, index, encoder=encoder)  # the advice, "build it again", works
    assert open_index(index, encoder)(["honey"], 1)[0][0].id == "bee"


def test_the_corpus_manifest_is_compared_too(index, encoder):
    for changes in ({"passages": 6}, {"digest": "f" * 32}, {"passages": None}, {"files": {"passages.arrow": -1}}):
        before = (index / "corpus" / "manifest.json").read_bytes()
        edit(index / "corpus" / "manifest.json", **changes)
        with pytest.raises(UserError):
            Corpus.open(index / "corpus").check_content()
        refused(index, encoder)
        (index / "corpus" / "manifest.json").write_bytes(before)


def test_vectors_that_are_no_numbers_or_of_another_shape_are_found(index, encoder):
    file = index / "vectors.npy"
    good = np.load(file)
    bad = good.copy()
    bad[2, 3] = np.nan
    for vectors in (bad, good[:4], good[:, :8], np.asfortranarray(good), good.astype("f8"), good.view(">f4"), good[0]):
        np.save(file, vectors)
        edit(index / "manifest.json", sealed=True, **{"files__vectors.npy": file.stat().st_size})
        refused(index, encoder)
    np.savez(file.with_suffix(""), good)
    file.with_suffix(".npz").replace(file)
    edit(index / "manifest.json", sealed=True, **{"files__vectors.npy": file.stat().st_size})
    refused(index, encoder)


@pytest.mark.parametrize("name", ["manifest.json", "corpus/manifest.json", "corpus/passages.arrow", "vectors.npy"])
def test_something_else_in_the_place_of_a_file(index, encoder, name):
    file = index / name
    contents = (
        b"",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\0" * 64,
        b"\xff\xfe",
        b"null",
        b'"text"',
        b"[1]",
        b"{}",
        b"9" * 9000,
    )
    for content in contents:
        file.write_bytes(content)
        refused(index, encoder)
    file.unlink()
    refused(index, encoder)
    file.mkdir()
    refused(index, encoder)
    file.rmdir()
    os.mkfifo(file)
    refused(index, encoder)
    file.unlink()
    file.symlink_to(file)
    refused(index, encoder)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300)
@given(st.data())
def test_any_other_value_anywhere_is_refused(sound_index, data):
    index, encoder, known, expected = sound_index
    good = json.loads(known)
    paths = [(name,) for name in good] + [
        (name, inner) for name, values in good.items() if isinstance(values, dict) for inner in values
    ]
    path = data.draw(st.sampled_from(paths))
    holder = good if len(path) == 1 else good[path[0]]
    before = holder[path[-1]]
    holder[path[-1]] = data.draw(VALUES)
    (index / "manifest.json").write_text(json.dumps(good))
    same = type(holder[path[-1]]) is type(before) and holder[path[-1]] == before
    found = line_or_value(lambda: open_index(index, encoder)(["honey"], 5)[0])
    if isinstance(found, str):
        assert "\n" not in found
        assert not same
    else:
        assert found == expected
        assert load_manifest(index).own_digest() == json.loads(known)["digest"]  # what was left out may be a default


@settings(max_examples=100)
@given(st.data())
def test_flipped_bytes_are_refused_or_harmless(sound_index, tmp_path_factory, data):
    """Bytes of any file changed: the passages that come out are those that went in, or there is one line."""
    index, encoder, known, expected = sound_index
    copy = tmp_path_factory.mktemp("flipped", numbered=True) / "index"
    shutil.copytree(index, copy)
    (copy / "manifest.json").write_text(known)
    name = data.draw(st.sampled_from(["manifest.json", "corpus/manifest.json", "corpus/passages.arrow"]))
    content = bytearray((copy / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (copy / name).write_bytes(content)
    found = line_or_value(lambda: open_index(copy, encoder)(["honey"], 5)[0])
    assert found == expected or (isinstance(found, str) and "\n" not in found)


def test_a_record_is_read_by_its_types(index):
    manifest = load_manifest(index)
    values = {name: value for name, value in manifest.as_dict().items() if name != "format"}
    assert record(type(manifest), values, "manifest").as_dict() == manifest.as_dict()
    with pytest.raises(UserError, match=r"manifest: encoder: dim must be int, not str 'x'"):
        record(type(manifest), values | {"encoder": values["encoder"] | {"dim": "x"}}, "manifest")
    with pytest.raises(UserError, match=r"manifest has no corpus"):
        record(type(manifest), {"passages": 5, "encoder": values["encoder"], "template": {}}, "manifest")
