"""An index that follows a folder: what is new, changed, gone, moved, unreadable or hostile, and kills on the way."""

import json
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
from refusals import refused

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
        path = Path(folder, name)
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
    write("docs", DOCS)
    return tmp_path / "docs"


@pytest.fixture
def synced(tmp_path, docs, encoder):
    report = sync_index(tmp_path / "index", [docs], encoder=encoder)
    assert report.added == ["a.md", "c.jsonl", "b/a.md"]
    assert report.passages_added == 4
    assert report.generation == 1
    assert held(tmp_path / "index") == HELD
    encoder.texts.clear()
    return tmp_path / "index"


def never(*_, **__):
    raise AssertionError("the encoder was loaded")


@pytest.mark.parametrize("kind", document_suffixes())
def test_the_version_of_a_format_is_that_of_all_its_code(kind, tmp_path):
    reading, copies = document_format(kind), []
    for place in reading.code:
        copies.append(tmp_path / place.name)
        (shutil.copytree if place.is_dir() else shutil.copy)(place, copies[-1])
    copied = replace(reading, code=tuple(copies))
    before = copied.version()
    assert before == reading.version()
    modules = sorted(tmp_path.rglob("*.py"))
    assert modules
    for module in modules:
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
    caches = (document_format, reading_of)
    for cached in caches:
        cached.cache_clear()
    try:
        report = sync_index(synced, [docs], encoder=encoder)
    finally:
        for cached in caches:
            cached.cache_clear()
    assert report.changed == ["a.md", "b/a.md"]
    assert report.unchanged == 1
    assert held(synced) == HELD | {"a-1": "BEES MAKE HONEY.", "b/a-1": "DOGS BARK."}


def test_nothing_changed_loads_no_encoder_and_writes_nothing(synced, docs, monkeypatch):
    before = (synced / "manifest.json").read_bytes()
    monkeypatch.setattr("retrieval.sync.encoder_of", never)
    (docs / "a.md").touch()
    report = sync_index(synced, [docs])
    assert report.unchanged == 3
    assert not report.added + report.changed + report.removed
    assert report.passages == 4
    assert report.passages_encoded == 0
    assert (synced / "manifest.json").read_bytes() == before


CHANGES = json.loads(r"""{
"new": [{"d.txt": "Owls hunt."}, ["d Owls hunt."]],
"changed": [{"a.md": "Bees sleep."}, ["a Bees sleep."]],
"gone": [{"b/a.md": null}, []],
"a row of a table": [{"c.jsonl": "{\"id\": \"x\", \"text\": \"one\"}\n{\"id\": \"z\", \"text\": \"six\"}"}, ["six"]],
"moved": [{"a.md": null, "e/f.md": "Bees make honey."}, ["e/f Bees make honey."]],
"the same under another id": [{"c.jsonl": "{\"id\": \"z\", \"text\": \"one\"}"}, []],
"all at once": [{"a.md": null, "b/a.md": "Cats purr.", "d.txt": "Owls hunt."}, ["d Owls hunt.", "b/a Cats purr."]]
}""")
FRESH = {
    "new": HELD | {"d-1": "Owls hunt."},
    "changed": HELD | {"a-1": "Bees sleep."},
    "moved": {"b/a-1": "Dogs bark.", "e/f-1": "Bees make honey."},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_sync_gives_what_a_new_build_gives_and_encodes_only_new_texts(
    synced, docs, make_encoder, kind
):
    changes, encoded = CHANGES[kind]
    write(docs, changes)
    again = make_encoder()
    report = sync_index(synced, [docs], encoder=again)
    assert again.texts == encoded
    assert report.passages_encoded == len(encoded)
    build_index([docs], "new", encoder=again)
    assert held(synced) == held(Path("new"))
    assert held(synced).items() >= FRESH.get(kind, {}).items()
    assert report.generation == load_manifest(synced).generation == 2
    assert report.passages == len(held(synced))
    verify_index(synced)
    assert sync_index(synced, [docs]).generation == 2
    ours, theirs = (
        open_index(index, again, mode="dense")(["bees dogs honey"], 9)[0]
        for index in (synced, "new")
    )
    assert [(hit.id, hit.score) for hit in ours] == [
        (hit.id, hit.score) for hit in theirs
    ]


def test_d17_two_readmes_of_different_folders_are_both_kept(tmp_path, encoder):
    """D17 and defect 11 of the field audit: the second was refused, with the advice to remove the first."""
    files = ["p/readme.md", "q/readme.md"]
    write(tmp_path, {"p/readme.md": "Permits.", "q/readme.md": "Ships."})
    build_index(files[:1], "two", encoder=encoder)
    add_files("two", files[1:], encoder=encoder)
    expected = {"readme-1": "Permits.", "readme.md-1": "Ships."}
    assert held(Path("two")) == expected
    build_index(files, "one", encoder=encoder)
    assert sorted(held(Path("one"))) == ["p/readme.md-1", "q/readme.md-1"]
    build_index(["p", "q"], "folders", encoder=encoder)
    assert len(held(Path("folders"))) == 2
    assert sync_index("two", files, encoder=encoder).unchanged == 2
    assert held(Path("two")) == expected


def test_d18_adding_a_changed_file_replaces_its_passages_only(synced, docs, encoder):
    """D18 of the field audit: the changed file was refused, and only single ids could be removed."""
    write(docs, {"b/a.md": "Dogs sleep.", "a.md": None})
    report = add_files(synced, [docs / "b/a.md"], encoder=encoder)
    assert report.passages_added == 1
    assert report.passages_removed == 1
    assert held(synced) == HELD | {"b/a-1": "Dogs sleep."}
    assert add_files(synced, [docs / "b/a.md"], encoder=encoder).passages_added == 0


def test_the_passages_of_a_file_are_removed_by_its_path(
    synced, docs, encoder, monkeypatch
):
    """Field audit D18."""
    monkeypatch.chdir(docs)
    assert remove_files(synced, ["c.jsonl", "b/a.md"]) == 3
    assert held(synced) == {"a-1": "Bees make honey."}
    with refused(r"no passages of 'b/a.md'"):
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
    wanted, kills, number = int(os.environ.get("SELFRAG_KILLS", "2")), 0, 0
    write(docs, {f"{n}.txt": f"file {n} of round 0" for n in range(60)})
    needed = run_sync(index, docs, 300)
    while kills < wanted:
        number += 1
        old = held(index)
        for path in docs.glob("*-*.txt"):
            path.unlink()
        changes = {f"{n}.txt": f"file {n} of round {number}" for n in range(0, 60, 2)}
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
    names = [
        "e\u0301.md",
        "\u00e9.md",
        "new\nline.md",
        ".hidden.md",
        "~$lock.md",
        "x.md/in.md",
    ]
    write(docs, dict.fromkeys(names, "text") | {"bad.jsonl": "{"})
    (docs / "circle").symlink_to(docs)
    (docs / "out.md").symlink_to("/etc/hostname")
    os.mkfifo(docs / "pipe.md")
    Path(os.fsdecode(os.fsencode(docs) + b"/\xff.md")).write_text("no UTF-8")
    with refused(r"pipe.md: cannot be read: it is a pipe"):
        sync_index(docs / "index", [docs], encoder=encoder)
    index = docs / "index"
    for _ in range(2):  # the second time the index lies in the folder
        report = sync_index(index, [docs], encoder=encoder, skip_unreadable=True)
        assert report.links == ["circle", "out.md"]
        assert len(report.read.unreadable) == 3
        assert all("\n" not in file.why for file in report.read.unreadable)
        kept = {"e\u0301.md-1", "\u00e9.md-1", "new\nline-1", "x.md/in-1"}
        assert held(index).keys() == HELD.keys() | kept
    write(docs, {"c.jsonl": "{"})
    sync_index(index, [docs], encoder=encoder, skip_unreadable=True)
    assert held(index)["x"] == "one"
    Path("empty").mkdir()
    for nothing in ("empty", "missing"):
        with refused("no file"):
            sync_index(index, [nothing], encoder=encoder)
    assert len(held(index)) == 8


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
            damage = (
                (slice(place, place + 8), chance.randbytes(8)),
                (
                    slice(place, place + 1),
                    bytes([content[place] ^ chance.randrange(255)]),
                ),
                (slice(place, place + chance.randrange(1, 64)), b""),
                (slice(place, place), content[:place][-chance.randrange(1, 64) :]),
            )
            where, new = chance.choice(damage)
            content[where] = new
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
    assert "\n" not in "".join(refusals)


def test_an_emptied_file_leaves_the_index_and_is_named(tmp_path, docs, encoder):
    """An empty file is readable and says nothing, in a folder that was never indexed, too."""
    index = tmp_path / "index"
    write(docs, {"none.md": "", "blank.csv": "\n", "rows.jsonl": "\n"})
    report = sync_index(index, [docs], encoder=encoder)
    empty = [str(docs / name) for name in ("blank.csv", "none.md", "rows.jsonl")]
    assert report.read.empty == empty
    assert held(index) == HELD
    assert f"empty {empty[1]}: no passages of it are in the index" in (
        report.read.lines()
    )
    write(docs, {"a.md": "", "c.jsonl": " \n"})
    report = sync_index(index, [docs], encoder=encoder)
    assert report.removed == ["a.md", "c.jsonl"]
    assert report.passages_removed == 3
    assert {str(docs / "a.md"), str(docs / "c.jsonl")} < set(report.read.empty)
    assert held(index) == {"b/a-1": "Dogs bark."}
    write(docs, {"b/a.md": ""})
    with refused("no passage would be left in index"):
        sync_index(index, [docs], encoder=encoder)


def test_files_of_unknown_kinds_are_counted_and_named_in_one_line(docs, encoder):
    names = ["a.log", "b/b.log", "c.key", "d.json", "README"]
    write(docs, dict.fromkeys(names, "x"))
    line = "passed over 5 files without a reader: 2 .log, 1 no suffix, 1 .key, 1 .json"
    for _ in range(2):
        report = sync_index("index", [docs], encoder=encoder)
        (said,) = [text for text in report.read.lines() if "without" in text]
        assert sorted(said) == sorted(line)
        assert report.as_dict()["read"]["unknown"][".log"] == 2


def test_a_file_that_is_named_twice_is_read_once_and_keeps_its_name(docs, encoder):
    file = docs / "b" / "a.md"
    for number, names in enumerate(
        (
            [docs, docs],
            [docs, file, docs / "." / "a.md"],
            [file, docs],
            [docs / "b", docs],
        )
    ):
        index = Path(f"{number}")
        sync_index(index, names, encoder=encoder)
        assert held(index) == HELD


def test_swapped_arguments_are_told(docs, synced, encoder):
    for change in (sync_index, add_files):
        for swapped in (docs, "new"):
            with refused(
                f"^{synced} is an index, and {swapped} is none; the index comes first, then its files$"
            ):
                change(swapped, [synced], encoder=encoder)
    with refused(r"docs is no index: it has no manifest\.json"):
        open_index(docs)
    assert held(synced) == HELD


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_a_limit_on_file_sizes_is_no_damage_of_the_index(synced, docs, encoder):
    write(docs, {"new.md": "Cats purr."})
    for most in (10, 300):
        with refused("no space left while writing") as said, full_disk(most):
            sync_index(synced, [docs], encoder=encoder)
        assert "build the index again" not in str(said.value)
    assert held(synced) == HELD
