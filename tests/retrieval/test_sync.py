"""An index that follows a folder: what is new, changed, gone, moved, unreadable or hostile, and kills on the way."""

import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from full_disk import full_disk
from json_files import read_json, write_json

from retrieval import (
    UserError,
    add_files,
    build_index,
    documents,
    open_index,
    remove_files,
    sync_index,
)
from retrieval.build import verify_index
from retrieval.documents import document_format, document_suffixes
from retrieval.index import load_manifest, open_parts
from retrieval.recording import reading_of


def write(folder, files):
    """Write texts by path; None removes a file."""
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def held(index):
    """The passages of an index as a mapping of ids to texts."""
    _, parts = open_parts(index)
    return {row.passage.id: row.passage.text for row in parts.corpus.live()}


DOCS = {
    "a.md": "Bees make honey.",
    "b/a.md": "Dogs bark.",
    "c.jsonl": '{"id": "x", "text": "one"}\n{"id": "y", "text": "two"}\n',
}
HELD = {"a-1": "Bees make honey.", "b/a-1": "Dogs bark.", "x": "one", "y": "two"}


@pytest.fixture
def docs(tmp_path):
    write(tmp_path / "docs", DOCS)
    return tmp_path / "docs"


@pytest.fixture
def synced(tmp_path, docs, encoder):
    report = sync_index(tmp_path / "index", [docs], encoder=encoder)
    assert (report.added, report.passages_added, report.generation) == (
        ["a.md", "c.jsonl", "b/a.md"],
        4,
        1,
    )
    assert held(tmp_path / "index") == HELD
    encoder.texts.clear()
    return tmp_path / "index"


def never(*_, **__):
    raise AssertionError("the encoder was loaded")


@pytest.mark.parametrize("kind", document_suffixes())
def test_the_version_of_a_format_is_that_of_all_its_code(kind, tmp_path):
    reading = document_format(kind)
    assert reading.code
    before = reading.version()
    for place in reading.code:
        copy = tmp_path / place.name
        if place.is_dir():
            shutil.copytree(place, copy)
        else:
            shutil.copy(place, copy)
    copied = replace(
        reading, code=tuple(tmp_path / place.name for place in reading.code)
    )
    assert copied.version() == before
    for module in sorted(tmp_path.rglob("*.py")):
        module.write_text(module.read_text() + "# changed\n")
        assert copied.version() != before
        before = copied.version()


def test_only_files_of_a_changed_reader_are_read_again(
    synced, docs, encoder, monkeypatch
):
    markdown = document_format(".md")

    def shout(path, name, options, report_progress):
        document = markdown.read(path, name, options, report_progress)
        return replace(document, text=document.text.upper())

    changed = replace(markdown, read=shout, code=(Path(__file__),))
    monkeypatch.setitem(documents._FORMATS, ".md", changed)
    document_format.cache_clear()
    reading_of.cache_clear()
    try:
        report = sync_index(synced, [docs], encoder=encoder)
    finally:
        document_format.cache_clear()
        reading_of.cache_clear()
    assert (report.changed, report.unchanged) == (["a.md", "b/a.md"], 1)
    assert held(synced) == HELD | {"a-1": "BEES MAKE HONEY.", "b/a-1": "DOGS BARK."}


def test_nothing_changed_loads_no_encoder_and_writes_nothing(synced, docs, monkeypatch):
    before = (synced / "manifest.json").read_bytes()
    monkeypatch.setattr("retrieval.sync.encoder_of", never)
    (docs / "a.md").touch()
    report = sync_index(synced, [docs])
    assert (report.unchanged, report.added, report.changed, report.removed) == (
        3,
        [],
        [],
        [],
    )
    assert (report.passages, report.passages_encoded) == (4, 0)
    assert (synced / "manifest.json").read_bytes() == before


CHANGES = {
    "new": ({"d.txt": "Owls hunt."}, HELD | {"d-1": "Owls hunt."}, ["d Owls hunt."]),
    "changed": (
        {"a.md": "Bees sleep."},
        HELD | {"a-1": "Bees sleep."},
        ["a Bees sleep."],
    ),
    "gone": (
        {"b/a.md": None},
        {name: text for name, text in HELD.items() if name != "b/a-1"},
        [],
    ),
    "a row of a table": (
        {"c.jsonl": '{"id": "x", "text": "one"}\n{"id": "z", "text": "six"}\n'},
        None,
        ["six"],
    ),
    "moved": (
        {"a.md": None, "e/f.md": "Bees make honey."},
        None,
        ["e/f Bees make honey."],
    ),
    "the same under another id": (
        {"c.jsonl": '{"id": "z", "text": "one"}\n'},
        None,
        [],
    ),
    "all at once": (
        {"a.md": None, "b/a.md": "Cats purr.", "d.txt": "Owls hunt."},
        None,
        ["d Owls hunt.", "b/a Cats purr."],
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_sync_gives_what_a_new_build_gives_and_encodes_only_new_texts(
    tmp_path, synced, docs, make_encoder, kind
):
    changes, expected, encoded = CHANGES[kind]
    write(docs, changes)
    again = make_encoder()
    report = sync_index(synced, [docs], encoder=again)
    assert again.texts == encoded
    assert report.passages_encoded == len(encoded)
    build_index([docs], tmp_path / "new", encoder=make_encoder())
    assert held(synced) == held(tmp_path / "new")
    assert expected is None or held(synced) == expected
    assert report.generation == load_manifest(synced).generation == 2
    assert report.passages == len(held(synced))
    verify_index(synced)
    assert sync_index(synced, [docs]).generation == 2
    query = ["bees dogs honey"]
    new = open_index(tmp_path / "new", make_encoder(), mode="dense")(query, 9)[0]
    assert [
        (hit.id, hit.score)
        for hit in open_index(synced, make_encoder(), mode="dense")(query, 9)[0]
    ] == [(hit.id, hit.score) for hit in new]


def test_d17_two_readmes_of_different_folders_are_both_kept(tmp_path, encoder):
    """D17 and defect 11 of the field audit: the second was refused, with the advice to remove the first."""
    write(
        tmp_path,
        {"p/readme.md": "Permits cost 45 crowns.", "q/readme.md": "Ships pay nothing."},
    )
    build_index([tmp_path / "p/readme.md"], tmp_path / "two", encoder=encoder)
    add_files(tmp_path / "two", [tmp_path / "q/readme.md"], encoder=encoder)
    assert held(tmp_path / "two") == {
        "readme-1": "Permits cost 45 crowns.",
        "readme.md-1": "Ships pay nothing.",
    }
    together = [tmp_path / "p/readme.md", tmp_path / "q/readme.md"]
    build_index(together, tmp_path / "one", encoder=encoder)
    assert sorted(held(tmp_path / "one")) == ["p/readme.md-1", "q/readme.md-1"]
    build_index([tmp_path / "p", tmp_path / "q"], tmp_path / "folders", encoder=encoder)
    assert len(held(tmp_path / "folders")) == 2
    report = sync_index(tmp_path / "two", together, encoder=encoder)
    assert (report.unchanged, sorted(held(tmp_path / "two"))) == (
        2,
        ["readme-1", "readme.md-1"],
    )


def test_d18_adding_a_changed_file_replaces_its_passages_only(
    tmp_path, synced, docs, encoder
):
    """D18 of the field audit: the changed file was refused, and only single ids could be removed."""
    write(docs, {"b/a.md": "Dogs sleep.", "a.md": None})
    report = add_files(synced, [docs / "b/a.md"], encoder=encoder)
    assert (report.passages_added, report.passages_removed) == (1, 1)
    assert held(synced) == HELD | {"b/a-1": "Dogs sleep."}
    assert add_files(synced, [docs / "b/a.md"], encoder=encoder).passages_added == 0


def test_the_passages_of_a_file_are_removed_by_its_path(
    synced, docs, encoder, monkeypatch
):
    """Field audit D18."""
    monkeypatch.chdir(docs)
    assert remove_files(synced, ["c.jsonl", "b/a.md"]) == 3
    assert held(synced) == {"a-1": "Bees make honey."}
    with pytest.raises(UserError, match=r"no passages of 'b/a.md'"):
        remove_files(synced, ["a.md", "b/a.md"])
    assert held(synced) == {"a-1": "Bees make honey."}
    assert sync_index(synced, [docs], encoder=encoder).passages == 4


KILLED = """
import sys, time
from pathlib import Path
import numpy as np
import retrieval.build
from retrieval.encoders import EncoderCard
from retrieval.sync import sync_index

retrieval.build.BLOCK_ROWS = 20

class Lengths:
    card = EncoderCard("lengths", "1", 8)

    def encode(self, texts):
        time.sleep(0.02)
        return np.array([[len(text) * n % 13 for n in range(8)] for text in texts], np.float32)

print("ready", flush=True)
sync_index(sys.argv[1], [sys.argv[2]], encoder=Lengths())
"""


def run_sync(index, docs, seconds):
    """Return how long a sync in a process of its own took, or None if it was killed after some seconds."""
    program = [sys.executable, "-c", KILLED, str(index), str(docs)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(program, cwd=Path(__file__).parents[2], **pipes)
    assert process.stdout.readline() == b"ready\n"
    started = time.monotonic()
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    assert process.returncode == 0, errors
    return time.monotonic() - started


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_killed_sync_leaves_the_old_or_the_new_state(tmp_path):
    """`SELFRAG_KILLS` sets how many kills are tried."""
    docs, index, chance = tmp_path / "docs", tmp_path / "index", random.Random(0)
    wanted, kills, number = int(os.environ.get("SELFRAG_KILLS", "3")), 0, 0
    write(docs, {f"{n}.txt": f"file {n} of round 0" for n in range(150)})
    needed = run_sync(index, docs, 300)
    while kills < wanted:
        number += 1
        old = held(index)
        for path in docs.glob("*-*.txt"):
            path.unlink()
        changes = {f"{n}.txt": f"file {n} of round {number}" for n in range(0, 150, 2)}
        write(docs, changes | {f"{number}-{n}.txt": "new" for n in range(9)})
        new = {f"{path.stem}-1": path.read_text() for path in docs.iterdir()}
        while run_sync(index, docs, chance.uniform(0, needed)) is None:
            kills += 1
            state = held(index)
            assert state in (old, new)
            verify_index(index)
            (hits,) = open_index(index, mode="words")(["round"], 999)
            assert {hit.id for hit in hits} <= set(state)
        assert held(index) == new
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "index"]


def test_what_a_folder_may_hold_is_one_line_each_and_nothing_is_lost(
    tmp_path, docs, encoder
):
    """Pipes, links out and in circles, names that are no UTF-8, twins in two normal forms, and the index itself."""
    write(
        docs,
        {
            "e\u0301.md": "decomposed",
            "\u00e9.md": "composed",
            "new\nline.md": "broken",
            "bad.jsonl": "{",
        },
    )
    write(
        docs,
        {
            ".hidden.md": "secret",
            "~$lock.md": "lock",
            "x.md/in.md": "a folder named as a file",
        },
    )
    (docs / "circle").symlink_to(docs)
    (docs / "out.md").symlink_to("/etc/hostname")
    os.mkfifo(docs / "pipe.md")
    Path(os.fsdecode(os.fsencode(docs) + b"/\xff.md")).write_text("no UTF-8")
    with pytest.raises(UserError, match=r"pipe.md: cannot be read: it is a pipe"):
        sync_index(docs / "index", [docs], encoder=encoder)
    for _ in range(2):  # the second time the index lies in the folder
        report = sync_index(
            docs / "index", [docs], encoder=encoder, skip_unreadable=True
        )
        assert report.links == ["circle", "out.md"]
        assert len(report.read.unreadable) == 3
        assert all("\n" not in file.why for file in report.read.unreadable)
        assert sorted(held(docs / "index")) == sorted(
            [*HELD, "e\u0301.md-1", "\u00e9.md-1", "new\nline-1", "x.md/in-1"]
        )
    write(docs, {"c.jsonl": "{"})
    sync_index(docs / "index", [docs], encoder=encoder, skip_unreadable=True)
    assert held(docs / "index")["x"] == "one"
    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "missing"):
        with pytest.raises(UserError, match="no file"):
            sync_index(
                docs / "index",
                [tmp_path / nothing],
                encoder=encoder,
                skip_unreadable=False,
            )
    assert len(held(docs / "index")) == 8


def test_a_crafted_table_of_files_is_refused_in_one_line_or_does_no_harm(
    tmp_path, synced, docs, make_encoder
):
    """The manifest agrees with each mutation: nothing but the table itself can tell."""
    manifest, chance = load_manifest(synced), random.Random(0)
    table = synced / manifest.part("files.arrow")
    good, refusals = table.read_bytes(), list[str]()
    for number in range(80):
        content, index = bytearray(good), tmp_path / "copy"
        for _ in range(chance.choice([1, 1, 2, 8])):
            place = chance.randrange(len(content))
            match chance.randrange(4):
                case 0:
                    content[place] ^= 1 << chance.randrange(8)
                case 1:
                    content[place : place + 8] = chance.randbytes(8)
                case 2:
                    del content[place : place + chance.randrange(1, 64)]
                case _:
                    content[place:place] = content[:place][-chance.randrange(1, 64) :]
            content = content or bytearray(1)
        shutil.copytree(synced, index)
        (index / table.relative_to(synced)).write_bytes(content)
        values = read_json(index / "manifest.json")
        values["files"][table.relative_to(synced).as_posix()] = len(content)
        values |= {"digest": "", "checksums": {}}
        write_json(index / "manifest.json", values)
        try:
            sync_index(index, [docs], encoder=make_encoder())
        except UserError as error:
            refusals.append(str(error))
        else:
            assert set(HELD.values()) <= set(held(index).values()), number
            verify_index(index)
        shutil.rmtree(index)
    assert len(refusals) > 40
    assert not [message for message in refusals if "\n" in message]


def test_an_emptied_file_leaves_the_index_and_is_named(tmp_path, docs, encoder):
    """An empty file is readable and says nothing, in a folder that was never indexed, too."""
    index = tmp_path / "index"
    write(docs, {"none.md": "", "blank.csv": "\n", "rows.jsonl": "\n"})
    report = sync_index(index, [docs], encoder=encoder)
    empty = [str(docs / name) for name in ("blank.csv", "none.md", "rows.jsonl")]
    assert (report.read.empty, held(index)) == (empty, HELD)
    assert f"empty {empty[1]}: no passages of it are in the index" in (
        report.read.lines()
    )
    write(docs, {"a.md": "", "c.jsonl": " \n"})
    report = sync_index(index, [docs], encoder=encoder)
    assert (report.removed, report.passages_removed) == (["a.md", "c.jsonl"], 3)
    assert {str(docs / "a.md"), str(docs / "c.jsonl")} < set(report.read.empty)
    assert held(index) == {"b/a-1": "Dogs bark."}
    write(docs, {"b/a.md": ""})
    with pytest.raises(UserError, match="no passage would be left in index"):
        sync_index(index, [docs], encoder=encoder)


def test_files_of_unknown_kinds_are_counted_and_named_in_one_line(
    tmp_path, docs, encoder
):
    names = ["a.log", "b/b.log", "c.key", "d.json", "README"]
    write(docs, dict.fromkeys(names, "x"))
    line = "passed over 5 files without a reader: 2 .log, 1 no suffix, 1 .key, 1 .json"
    for report in (
        sync_index(tmp_path / "index", [docs], encoder=encoder),
        sync_index(tmp_path / "index", [docs], encoder=encoder),
    ):
        (said,) = [text for text in report.read.lines() if "without" in text]
        assert sorted(said) == sorted(line)
        assert report.as_dict()["read"]["unknown"][".log"] == 2


def test_a_file_that_is_named_twice_is_read_once_and_keeps_its_name(
    tmp_path, docs, encoder
):
    for number, names in enumerate(
        (
            [docs, docs],
            [docs, docs / "b" / "a.md", docs / "." / "a.md"],
            [docs / "b" / "a.md", docs],
            [docs / "b", docs],
        )
    ):
        sync_index(tmp_path / f"{number}", names, encoder=encoder)
        assert held(tmp_path / f"{number}") == HELD


def test_swapped_arguments_are_told(tmp_path, docs, synced, encoder):
    for change in (sync_index, add_files):
        for swapped in (docs, tmp_path / "new"):
            with pytest.raises(UserError) as refused:
                change(swapped, [synced], encoder=encoder)
            assert str(refused.value) == (
                f"{synced} is an index, and {swapped} is none; the index comes first, then its files"
            )
    with pytest.raises(UserError, match=r"docs is no index: it has no manifest\.json"):
        open_index(docs)
    assert held(synced) == HELD


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_a_limit_on_file_sizes_is_no_damage_of_the_index(synced, docs, encoder):
    write(docs, {"new.md": "Cats purr."})
    full = pytest.raises(UserError, match="no space left while writing")
    for most in (10, 300):
        with full as said, full_disk(most):
            sync_index(synced, [docs], encoder=encoder)
        assert "build the index again" not in str(said.value)
    assert held(synced) == HELD
