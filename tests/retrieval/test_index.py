"""An index is built, built again after an interruption, and changed: added to, removed from, made one segment."""

import errno
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from json_files import read_json, write_json
from refusals import refused

import retrieval.build
from retrieval import Passage, UserError, build_index, index_passages, open_index
from retrieval.build import add_passages, compact_index, remove_passages, verify_index
from retrieval.encoders import Template
from retrieval.index import load_manifest
from selfrag import cluster
from selfrag.cluster import Actors, RayEncoder
from selfrag.common.atomic import locked_directory
from selfrag.common.errors import MissingExtraError

FOX = Passage("fox", "A fox steals honey from the hive.", "Fox")


def names(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def same_files(first, second, *more):
    """Whether two indexes have the same vectors, passages and further files."""
    return all(
        Path(first, file).read_bytes() == Path(second, file).read_bytes()
        for file in ("vectors.npy", "corpus/passages.arrow", *more)
    )


def hits(index, encoder, query="honey", k=9):
    return [passage.id for passage in open_index(index, encoder)([query], k)[0]]


def test_files_become_an_index_that_opens_and_the_same_build_again_does_nothing(
    tmp_path, encoder
):
    Path("a.jsonl").write_text('{"id": "bee", "text": "Bees make honey."}\n')
    Path("b.csv").write_text("id,title,text\ndog,Dog,A dog barks.\n")
    built = build_index(["a.jsonl", "b.csv"], "index", encoder=encoder)
    assert [p.id for p in built(["honey"], 2)[0]] == ["bee", "dog"]
    assert built(["honey"], 2) == open_index("index", encoder)(["honey"], 2)
    assert names(tmp_path) == ["a.jsonl", "b.csv", "index"]
    assert " ".join(names("index")) == "corpus manifest.json parts vectors.npy"
    file = Path("index/manifest.json")
    manifest = file.stat().st_mtime_ns
    encoder.texts.clear()
    index_passages(list(built.corpus), "index", encoder=encoder)
    assert encoder.texts == []
    assert file.stat().st_mtime_ns == manifest


@pytest.mark.parametrize("change", ["passages", "encoder", "template"])
def test_another_build_replaces_the_index(
    tmp_path, index, animals, make_encoder, change
):
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
    return [
        Passage(str(n), f"passage number {n} " + "word " * (n % 7)) for n in range(95)
    ]


@pytest.mark.parametrize("blocks", [0, 5])
def test_an_interrupted_build_continues_to_the_same_index(
    tmp_path, many, make_encoder, blocks
):
    index_passages(many, "whole", encoder=make_encoder())
    with pytest.raises(KeyboardInterrupt):
        index_passages(many, "index", encoder=make_encoder(fail_after=blocks))
    assert "index" not in names(tmp_path)
    with refused(r"is not finished"):
        open_index("index", make_encoder())
    again = make_encoder()
    index_passages(many, "index", encoder=again)
    assert len(again.texts) == 95 - 10 * blocks
    assert same_files("index", "whole", "manifest.json", "corpus/manifest.json")
    assert names(tmp_path) == ["index", "whole"]


def test_an_interrupted_build_of_something_else_is_not_continued(many, make_encoder):
    with pytest.raises(KeyboardInterrupt):
        index_passages(many, "index", encoder=make_encoder(fail_after=3))
    changed = [*many[:-1], Passage("94", "another text")]
    again = make_encoder()
    retriever = index_passages(changed, "index", encoder=again)
    assert len(again.texts) == 95
    assert retriever(["another text"], 1)[0][0].id == "94"


def test_an_index_that_could_not_be_put_in_place_is_not_encoded_again(
    many, make_encoder, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("retrieval.index_writing.publish", full)
        with refused("no space left while writing"):
            index_passages(many, "index", encoder=make_encoder())
    again = make_encoder()
    index_passages(many, "index", encoder=again)
    assert again.texts == []
    assert len(open_index("index", again).corpus) == 95


def test_a_bad_row_leaves_nothing_or_the_older_index(tmp_path, animals, encoder):
    Path("bad.jsonl").write_text('{"id": "a", "text": "x"}\n{"id": "b"}\n')
    for there in ([], ["index"]):
        with refused(r"bad\.jsonl:2: no text"):
            build_index(["bad.jsonl"], "index", encoder=encoder, replace=True)
        assert names(tmp_path) == ["bad.jsonl", *there]
        index_passages(animals, "index", encoder=encoder)
    assert len(open_index("index", encoder).corpus) == 5


def test_another_encoder_is_refused(index, encoder, make_encoder):
    said = (
        r"was built with another encoder: 'words' \(words-1\), not 'words' \(words-9\)"
    )
    with refused(said):
        open_index(index, make_encoder(fingerprint="words-9"))
    with refused("must be passed as encoder="):
        open_index(index)
    with refused(r"no index at .*nowhere"):
        open_index("nowhere", encoder)


def test_two_builders_of_one_index_do_not_meet(animals, encoder):
    with (
        locked_directory(Path("index.building")),
        refused("another process is writing"),
    ):
        index_passages(animals, "index", encoder=encoder)
    index_passages(animals, "index", encoder=encoder)


def test_an_index_that_a_killed_build_had_set_aside_opens(tmp_path, animals, encoder):
    """As after a kill between the two renames with which another index was to take its place."""
    hits = index_passages(animals, "index", encoder=encoder)(["honey"], 2)
    Path("index").rename(".index.0123abcd.old")
    Path("index.building").mkdir()
    assert open_index("index", encoder)(["honey"], 2) == hits
    assert names(tmp_path) == ["index", "index.building"]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.sources._SETTLED", 0.0)
    monkeypatch.setattr(retrieval.build, "BLOCK_ROWS", 10)
    file = tmp_path / "a.jsonl"
    file.write_text(
        "".join(f'{{"id": "{n}", "text": "passage {n}"}}\n' for n in range(40))
    )
    return file


@pytest.mark.parametrize("blocks", [2, None])
def test_files_that_did_not_change_are_not_read_again(
    tmp_path, table, make_encoder, monkeypatch, blocks
):
    with nullcontext() if blocks is None else pytest.raises(KeyboardInterrupt):
        build_index([table], "index", encoder=make_encoder(fail_after=blocks))
    again = make_encoder()
    with monkeypatch.context() as patch:
        patch.setattr(
            "retrieval.tables.read_lines", lambda path: pytest.fail("read again")
        )
        assert len(build_index([table], "index", encoder=again).corpus) == 40
    assert len(again.texts) == (20 if blocks else 0)
    table.write_text('{"id": "new", "text": "another"}\n')
    assert len(build_index([table], "index", encoder=again).corpus) == 1
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "b", "text": "of another file"}\n')
    with refused("1 passage of other files"):
        build_index([other], "index", encoder=again)
    assert open_index("index", again).corpus[0].id == "new"
    build_index([other], "index", encoder=again, replace=True)
    assert open_index("index", again).corpus[0].id == "b"


def test_added_passages_are_found_and_only_they_are_encoded(index, encoder):
    before = hits(index, encoder, "fox honey")
    encoder.texts.clear()
    elk = Passage("elk", "An elk eats moss.")
    assert add_passages(index, [FOX, elk], encoder=encoder) == 2
    assert encoder.texts == ["Fox A fox steals honey from the hive.", elk.text]
    first, *after = hits(index, encoder, "fox honey")
    assert first == "fox"
    after.remove("elk")
    assert after == before
    assert names(index.parent) == ["index"]
    bee = [Passage("bee", "Another bee.")]
    with refused("id 'bee' is in the index"):
        add_passages(index, bee, encoder=encoder)
    remove_passages(index, ["bee"])
    add_passages(index, bee, encoder=encoder)
    assert "bee" in hits(index, encoder, "bee")


def test_a_removed_passage_is_never_found(index, encoder, animals):
    assert remove_passages(index, ["bee", "ant"]) == 2
    assert set(hits(index, encoder)) == {"cat", "dog", "owl"}
    with refused(r"no passage 'bee'"):
        remove_passages(index, ["cat", "bee"])
    assert remove_passages(index, ["owl"]) == 1
    assert set(hits(index, encoder)) == {"cat", "dog"}
    compact_index(index)
    assert set(hits(index, encoder)) == {"cat", "dog"}
    assert remove_passages(index, ["cat", "dog"]) == 2
    assert hits(index, encoder) == []
    with refused("an empty corpus cannot be searched"):
        compact_index(index)
    add_passages(index, animals, encoder=encoder)
    assert len(hits(index, encoder)) == 5


def test_compaction_gives_the_index_that_a_new_build_gives(
    tmp_path, index, encoder, animals
):
    add_passages(index, [FOX], encoder=encoder)
    remove_passages(index, ["dog"])
    calls = encoder.calls
    compact_index(index)
    assert encoder.calls == calls
    rest = [passage for passage in [*animals, FOX] if passage.id != "dog"]
    index_passages(rest, "new", encoder=encoder)
    assert same_files(index, "new")
    ours, theirs = (open_index(path, encoder)(["honey"], 5) for path in (index, "new"))
    assert ours == theirs
    assert " ".join(names(index)) == "corpus manifest.json parts vectors.npy"


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


def test_a_reader_that_opens_while_the_index_changes_opens_again(
    index, encoder, monkeypatch
):
    real = retrieval.index._opened

    def changed(path, manifest):
        monkeypatch.setattr("retrieval.index._opened", real)
        remove_passages(index, ["bee"])
        raise UserError("a file is missing")

    monkeypatch.setattr("retrieval.index._opened", changed)
    assert "bee" not in hits(index, encoder)


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


NEWER = "generation added removed dense language checksums inputs digest"


def test_an_index_of_the_older_format_opens_and_can_be_changed(index, encoder, animals):
    values = read_json(index / "manifest.json")
    for name in NEWER.split():
        del values[name]
    del values["encoder"]["precision"]
    values |= {"format": "selfrag-index-1", "kind": "flat"}
    write_json(index / "manifest.json", values)
    assert hits(index, encoder)[0] == "bee"
    encoder.texts.clear()
    index_passages(animals, index, encoder=encoder)
    assert encoder.texts == []  # it is not built again
    add_passages(index, [FOX], encoder=encoder)
    remove_passages(index, ["bee"])
    encoder.texts.clear()
    compact_index(index)
    assert hits(index, encoder)[0] == "fox"
    assert verify_index(index).checksums


@pytest.fixture
def _actors_here(monkeypatch):
    """What Ray does: actors take turns, all crosses as bytes, rows come back in any order, an error at the end."""

    def on_actors(tasks, open_worker, actors):
        workers = [cluster.Actor(open_worker) for _ in range(actors.workers)]
        done = [
            workers[n % len(workers)]({"task": pickle.dumps(task)})
            for n, task in enumerate(tasks)
        ]
        for row in reversed(done):
            yield from pickle.loads(row["results"])
        if error := next((row["error"] for row in done if row["error"]), ""):
            raise UserError(error)

    monkeypatch.setattr(cluster, "on_actors", on_actors)
    monkeypatch.setattr(cluster, "require_ray", lambda: None)
    monkeypatch.setattr(retrieval.build, "BLOCK_ROWS", 2)


@pytest.mark.usefixtures("_actors_here")
def test_ray_actors_give_the_bytes_of_a_local_build_and_one_with_another_encoder_is_refused(
    animals, encoder, make_encoder
):
    index_passages(animals, "local", encoder=encoder)
    index_passages(animals, "ray", encoder=RayEncoder(encoder, make_encoder, Actors(4)))
    assert same_files("ray", "local")
    strange = RayEncoder(encoder, lambda: make_encoder(fingerprint="x"), Actors(2))
    with refused("a worker has another encoder than 'words'"):
        index_passages(animals, "index", encoder=strange)


def test_without_ray_the_extra_is_named(monkeypatch, make_encoder):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed; run: .*ray"):
        RayEncoder(make_encoder(), make_encoder, Actors(1))


def test_an_index_can_be_moved_and_finds_its_encoder(tiny_bert, animals):
    expected = index_passages(animals, "a", encoder=tiny_bert)(["dog"], 3)
    Path("a").rename("b")
    assert open_index("b")(["dog"], 3) == expected


def test_issue_50_a_passage_of_a_file_knows_its_place(tmp_path, encoder):
    """At 2d68d6f3 passages of Markdown, HTML, text and Word files had no metadata, and none had its file."""
    text = "Honey of one.\n\n# Bees\n\n## Winter\n\nBees of one eat honey.\n"
    for folder in ("one", "two"):  # files of one name
        Path(folder).mkdir()
        Path(folder, "index.md").write_text(text.replace("one", folder))
    Path("rows.jsonl").write_text(
        '{"id": "row", "text": "Honey.", "file": "own"}\n{"id": "b", "text": "honey b"}\n'
    )

    def places(opened):
        hits = opened(["honey"], 20)[0]
        return {hit.id: dict(hit.metadata) for hit in hits}

    opened = build_index(["one", "two", "rows.jsonl"], "ix", encoder=encoder)
    heading = {"heading": "Bees > Winter", "start": text.index("Bees of"), "end": 56}
    expected = {"row": {"file": "own"}, "b": {"file": f"{tmp_path}/rows.jsonl"}}
    for folder in ("one", "two"):
        file = {"file": f"{tmp_path}/{folder}/index.md"}
        expected[f"{folder}/index.md-1"] = {"start": 0, "end": 13} | file
        expected[f"{folder}/index.md-2"] = heading | file
    assert places(opened) == expected
    add_passages("ix", [FOX], encoder=encoder)
    remove_passages("ix", ["b"])
    changed = expected | {"fox": {}}
    del changed["b"]
    assert places(open_index("ix", encoder)) == changed
    compact_index("ix")
    assert places(open_index("ix", encoder)) == changed
    assert places(opened) == expected  # its table is gone


def test_the_mode_before_an_index_is_part_of_a_run(index):
    """`selfrag eval run --index dense:DIR` ended with "is no index"."""
    from selfrag.evaluation.runner import index_fingerprint

    prints = {index_fingerprint(f"{mode}{index}") for mode in ("", "dense:", "words:")}
    assert len(prints) == 3
