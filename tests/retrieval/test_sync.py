"""An index that follows a folder: what is new, changed, gone, moved, unreadable or hostile, and kills on the way."""

from __future__ import annotations

import pytest

from retrieval import build_index, open_index, sync_index
from retrieval.build import verify_index
from retrieval.index import load_manifest, open_parts


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
    assert (report.added, report.passages_added, report.generation) == (["a.md", "c.jsonl", "b/a.md"], 4, 1)
    assert held(tmp_path / "index") == HELD
    encoder.texts.clear()
    return tmp_path / "index"


def never(*_, **__):
    raise AssertionError("the encoder was loaded")


def test_nothing_changed_loads_no_encoder_and_writes_nothing(synced, docs, monkeypatch):
    before = (synced / "manifest.json").read_bytes()
    monkeypatch.setattr("retrieval.sync.encoder_of", never)
    (docs / "a.md").touch()
    report = sync_index(synced, [docs])
    assert (report.unchanged, report.added, report.changed, report.removed) == (3, [], [], [])
    assert (report.passages, report.passages_encoded) == (4, 0)
    assert (synced / "manifest.json").read_bytes() == before


CHANGES = {
    "new": ({"d.txt": "Owls hunt."}, HELD | {"d-1": "Owls hunt."}, ["d Owls hunt."]),
    "changed": ({"a.md": "Bees sleep."}, HELD | {"a-1": "Bees sleep."}, ["a Bees sleep."]),
    "gone": ({"b/a.md": None}, {name: text for name, text in HELD.items() if name != "b/a-1"}, []),
    "a row of a table": ({"c.jsonl": '{"id": "x", "text": "one"}\n{"id": "z", "text": "six"}\n'}, None, ["six"]),
    "moved": ({"a.md": None, "e/f.md": "Bees make honey."}, None, ["e/f Bees make honey."]),
    "the same under another id": ({"c.jsonl": '{"id": "z", "text": "one"}\n'}, None, []),
    "all at once": (
        {"a.md": None, "b/a.md": "Cats purr.", "d.txt": "Owls hunt."},
        None,
        ["d Owls hunt.", "b/a Cats purr."],
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_sync_gives_what_a_new_build_gives_and_encodes_only_new_texts(tmp_path, synced, docs, make_encoder, kind):
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
    assert [(hit.id, hit.score) for hit in open_index(synced, make_encoder(), mode="dense")(query, 9)[0]] == [
        (hit.id, hit.score) for hit in new
    ]
