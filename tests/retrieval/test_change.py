"""An index that is changed: added to, removed from, made one segment, given another kind; and readers meanwhile."""

import json
import shutil

import pytest

import retrieval.build
from retrieval import Passage, UserError, index_passages, open_index
from retrieval.build import add_passages, compact_index, remove_passages, verify_index
from retrieval.index import load_manifest

FOX = Passage("fox", "A fox steals honey from the hive.", "Fox")


def found(index, encoder, query="honey", k=9):
    return [passage.id for passage in open_index(index, encoder)([query], k)[0]]


def test_added_passages_are_found_and_only_they_are_encoded(index, encoder):
    before = found(index, encoder, "fox honey")
    encoder.texts.clear()
    assert add_passages(index, [FOX, Passage("elk", "An elk eats moss.")], encoder=encoder) == 2
    assert encoder.texts == ["Fox A fox steals honey from the hive.", "An elk eats moss."]
    after = found(index, encoder, "fox honey")
    assert after[0] == "fox"
    assert [one for one in after if one not in ("fox", "elk")] == before
    assert sorted(path.name for path in index.parent.iterdir()) == ["index"]
    with pytest.raises(UserError, match="id 'bee' is in the index; remove that passage first"):
        add_passages(index, [Passage("bee", "Another bee.")], encoder=encoder)
    remove_passages(index, ["bee"])
    add_passages(index, [Passage("bee", "Another bee.")], encoder=encoder)
    assert "bee" in found(index, encoder, "bee")


def test_a_removed_passage_is_never_found(index, encoder, animals):
    assert remove_passages(index, ["bee", "ant"]) == 2
    assert set(found(index, encoder)) == {"cat", "dog", "owl"}
    with pytest.raises(UserError, match=r"no passage 'bee' in index .*; nothing was removed"):
        remove_passages(index, ["cat", "bee"])
    assert remove_passages(index, ["owl"]) == 1
    assert set(found(index, encoder)) == {"cat", "dog"}
    compact_index(index)
    assert set(found(index, encoder)) == {"cat", "dog"}
    assert remove_passages(index, ["cat", "dog"]) == 2
    assert found(index, encoder) == []
    with pytest.raises(UserError, match="an empty corpus cannot be searched"):
        compact_index(index)
    add_passages(index, animals, encoder=encoder)
    assert len(found(index, encoder)) == 5


def test_compaction_gives_the_index_that_a_new_build_gives(tmp_path, index, encoder, animals):
    add_passages(index, [FOX], encoder=encoder)
    remove_passages(index, ["dog"])
    calls = encoder.calls
    compact_index(index)
    assert encoder.calls == calls
    rest = [passage for passage in [*animals, FOX] if passage.id != "dog"]
    index_passages(rest, tmp_path / "new", encoder=encoder)
    for file in ("vectors.npy", "corpus/passages.arrow"):
        assert (index / file).read_bytes() == (tmp_path / "new" / file).read_bytes()
    assert open_index(index, encoder)(["honey"], 5) == open_index(tmp_path / "new", encoder)(["honey"], 5)
    assert sorted(path.name for path in index.iterdir()) == ["corpus", "manifest.json", "parts", "vectors.npy"]


def test_a_reader_keeps_its_generation(index, encoder):
    reader = open_index(index, encoder)
    before = reader(["honey"], 9)
    add_passages(index, [FOX], encoder=encoder)
    remove_passages(index, ["bee"])
    second = open_index(index, encoder)
    between = second(["honey"], 9)
    compact_index(index, storage="float16")
    assert reader(["honey"], 9) == before
    assert second(["honey"], 9) == between
    assert load_manifest(index).generation == 4


def test_a_reader_that_opens_while_the_index_changes_opens_again(index, encoder, monkeypatch):
    real = retrieval.index._opened

    def changed(path, manifest):
        monkeypatch.setattr("retrieval.index._opened", real)
        remove_passages(index, ["bee"])
        raise UserError("a file is missing")

    monkeypatch.setattr("retrieval.index._opened", changed)
    assert "bee" not in found(index, encoder)


def test_an_interrupted_addition_continues(index, make_encoder, monkeypatch):
    monkeypatch.setattr(retrieval.build, "BLOCK_ROWS", 10)
    many = [Passage(f"new {n}", f"passage number {n}") for n in range(45)]
    with pytest.raises(KeyboardInterrupt):
        add_passages(index, many, encoder=make_encoder(fail_after=3))
    assert len(open_index(index, make_encoder()).corpus) == 5
    with monkeypatch.context() as patch:  # killed where only the manifest is missing
        patch.setattr("retrieval.build.next_generation", lambda *_: 1 / 0)
        again = make_encoder()
        with pytest.raises(ZeroDivisionError):
            add_passages(index, many, encoder=again)
        assert len(again.texts) == 15
    assert len(open_index(index, make_encoder()).corpus) == 5
    last = make_encoder()
    assert add_passages(index, many, encoder=last) == 45
    assert last.texts == []
    assert len(open_index(index, last).corpus) == 50


@pytest.fixture
def older(index):
    """An index as the version before wrote it."""
    values = json.loads((index / "manifest.json").read_text())
    for name in ("generation", "added", "removed", "dense", "language", "checksums", "inputs", "digest"):
        del values[name]
    del values["encoder"]["precision"]
    (index / "manifest.json").write_text(json.dumps(values | {"format": "selfrag-index-1", "kind": "flat"}))
    return index


def test_an_index_of_the_older_format_opens_and_can_be_changed(older, encoder, animals):
    assert found(older, encoder)[0] == "bee"
    encoder.texts.clear()
    index_passages(animals, older, encoder=encoder)
    assert encoder.texts == []  # it is not built again
    add_passages(older, [FOX], encoder=encoder)
    remove_passages(older, ["bee"])
    assert found(older, encoder)[0] == "fox"
    encoder.texts.clear()
    compact_index(older)
    assert found(older, encoder)[0] == "fox"
    assert verify_index(older).checksums


def test_a_manifest_cannot_name_a_folder_elsewhere(index, encoder):
    values = json.loads((index / "manifest.json").read_text())
    shutil.copytree(index, index.parent / "other")
    for name in ("../other", "/etc", "parts/../../other", ""):
        segment = {"name": name, "passages": 5, "corpus": values["corpus"]}
        (index / "manifest.json").write_text(json.dumps(values | {"digest": "", "added": [segment]}))
        with pytest.raises(UserError, match="is not the folder of a segment"):
            open_index(index, encoder)
