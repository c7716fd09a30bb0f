import errno
import shutil

import pytest

import retrieval.build
from retrieval import Passage, UserError, build_index, index_passages, open_index
from retrieval.atomic import locked_directory
from retrieval.encoders import Template


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_files_become_an_index_that_opens(tmp_path, encoder):
    (tmp_path / "a.jsonl").write_text('{"id": "bee", "text": "Bees make honey."}\n')
    (tmp_path / "b.csv").write_text("id,title,text\ndog,Dog,A dog barks.\n")
    built = build_index([tmp_path / "a.jsonl", tmp_path / "b.csv"], tmp_path / "index", encoder=encoder)
    opened = open_index(tmp_path / "index", encoder)
    assert built(["honey"], 2) == opened(["honey"], 2)
    assert [p.id for p in opened(["honey"], 2)[0]] == ["bee", "dog"]
    assert names(tmp_path) == ["a.jsonl", "b.csv", "index"]
    assert names(tmp_path / "index") == ["corpus", "manifest.json", "parts", "vectors.npy"]


def test_the_same_build_again_encodes_nothing(tmp_path, index, animals, encoder):
    manifest = (index / "manifest.json").stat().st_mtime_ns
    index_passages(animals, index, encoder=encoder)
    assert encoder.texts == []
    assert (index / "manifest.json").stat().st_mtime_ns == manifest
    assert names(tmp_path) == ["index"]


@pytest.mark.parametrize("change", ["passages", "encoder", "template"])
def test_another_build_replaces_the_index(tmp_path, index, animals, make_encoder, change):
    other = make_encoder(fingerprint="words-2" if change == "encoder" else "words-1")
    passages = animals[:3] if change == "passages" else animals
    template = Template("{text}") if change == "template" else None
    index_passages(passages, index, encoder=other, template=template)
    assert len(other.texts) == len(passages)
    assert len(open_index(index, other).corpus) == len(passages)
    assert names(tmp_path) == ["index"]


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(retrieval.build, "BLOCK_ROWS", 10)
    return [Passage(str(n), f"passage number {n} " + "word " * (n % 7)) for n in range(95)]


@pytest.mark.parametrize("blocks", [0, 5])
def test_an_interrupted_build_continues_to_the_same_index(tmp_path, many, make_encoder, blocks):
    index_passages(many, tmp_path / "whole", encoder=make_encoder())
    with pytest.raises(KeyboardInterrupt):
        index_passages(many, tmp_path / "index", encoder=make_encoder(fail_after=blocks))
    assert "index" not in names(tmp_path)
    with pytest.raises(UserError, match=r"is not finished: its build was interrupted .*run the same build again"):
        open_index(tmp_path / "index", make_encoder())
    again = make_encoder()
    index_passages(many, tmp_path / "index", encoder=again)
    assert len(again.texts) == 95 - 10 * blocks
    for file in ("vectors.npy", "manifest.json", "corpus/passages.arrow", "corpus/manifest.json"):
        assert (tmp_path / "index" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
    assert names(tmp_path) == ["index", "whole"]


def test_an_interrupted_build_of_something_else_is_not_continued(tmp_path, many, make_encoder):
    with pytest.raises(KeyboardInterrupt):
        index_passages(many, tmp_path / "index", encoder=make_encoder(fail_after=3))
    changed = [*many[:-1], Passage("94", "another text")]
    again = make_encoder()
    retriever = index_passages(changed, tmp_path / "index", encoder=again)
    assert len(again.texts) == 95
    assert retriever(["another text"], 1)[0][0].id == "94"


def test_an_index_that_could_not_be_put_in_place_is_not_encoded_again(tmp_path, many, make_encoder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("retrieval.generations.publish", full)
        with pytest.raises(UserError, match="no space left while writing"):
            index_passages(many, tmp_path / "index", encoder=make_encoder())
    again = make_encoder()
    index_passages(many, tmp_path / "index", encoder=again)
    assert again.texts == []
    assert len(open_index(tmp_path / "index", again).corpus) == 95


def test_a_bad_row_leaves_nothing_or_the_older_index(tmp_path, animals, encoder):
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "text": "x"}\n{"id": "b"}\n')
    with pytest.raises(UserError, match=r"bad\.jsonl:2: no text"):
        build_index([tmp_path / "bad.jsonl"], tmp_path / "index", encoder=encoder)
    assert names(tmp_path) == ["bad.jsonl"]
    index_passages(animals, tmp_path / "index", encoder=encoder)
    with pytest.raises(UserError, match=r"bad\.jsonl:2: no text"):
        build_index([tmp_path / "bad.jsonl"], tmp_path / "index", encoder=encoder)
    assert len(open_index(tmp_path / "index", encoder).corpus) == 5
    assert names(tmp_path) == ["bad.jsonl", "index"]


def test_another_encoder_is_refused(tmp_path, index, encoder, make_encoder):
    said = r"was built with another encoder: 'words' \(words-1\), not 'words' \(words-9\)"
    with pytest.raises(UserError, match=said):
        open_index(index, make_encoder(fingerprint="words-9"))
    with pytest.raises(UserError, match="must be passed as encoder="):
        open_index(index)
    with pytest.raises(UserError, match=r"no index at .*nowhere; build it first, for example: selfrag index build"):
        open_index(tmp_path / "nowhere", encoder)


def test_two_builders_of_one_index_do_not_meet(tmp_path, animals, encoder):
    with locked_directory(tmp_path / "index.building"), pytest.raises(UserError, match="another process is writing"):
        index_passages(animals, tmp_path / "index", encoder=encoder)
    index_passages(animals, tmp_path / "index", encoder=encoder)


def test_an_index_that_a_killed_build_had_set_aside_opens(tmp_path, animals, encoder):
    """As after a kill between the two renames with which another index was to take its place."""
    found = index_passages(animals, tmp_path / "index", encoder=encoder)(["honey"], 2)
    (tmp_path / "index").rename(tmp_path / ".index.0123abcd.old")
    (tmp_path / "index.building").mkdir()
    assert open_index(tmp_path / "index", encoder)(["honey"], 2) == found
    assert names(tmp_path) == ["index", "index.building"]


def test_an_index_can_be_moved_and_finds_its_encoder(tmp_path, tiny_bert, animals):
    built = index_passages(animals, tmp_path / "a", encoder=tiny_bert)
    expected = built(["dog"], 3)
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert open_index(tmp_path / "b")(["dog"], 3) == expected
