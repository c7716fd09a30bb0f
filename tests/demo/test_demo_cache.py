"""The cache: where it is, that a thing is in it whole or not at all; and the corpus as passages."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selfrag.demo.corpus import passages
from selfrag.demo.download import cache_home, publish
from selfrag.errors import UserError
from selfrag.training.export import published


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),  # as safetensors and faiss put it
    ],
)
def test_a_full_disk_is_one_line_that_names_the_way_out(tmp_path: Path, error: Exception) -> None:
    def build(draft: Path) -> None:
        (draft / "half").write_text("half")
        raise error

    with pytest.raises(UserError, match=r"No space left on device.*SELFRAG_CACHE") as caught:
        publish(tmp_path / "thing", build)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == []


def test_a_place_without_room_or_that_is_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"MB free, .* MB needed"):
        publish(tmp_path / "thing", lambda draft: pytest.fail("started"), needs=2**60)
    (tmp_path / "cache").write_text("I am a file")
    with pytest.raises(UserError, match=r"cannot write to .*cache.* set SELFRAG_CACHE"):
        publish(tmp_path / "cache" / "thing", lambda draft: None)


def test_drafts_of_killed_processes_are_removed_when_they_are_old(tmp_path: Path) -> None:
    """Also of a merge into a draft of the cache, which has a draft of its own beside it."""
    with published(tmp_path / ".model.0000.partial") as draft:
        left = [shutil.copytree(draft, tmp_path / draft.name.replace("model", age)) for age in ("old", "fresh")]
    os.utime(left[0], (0, 0))
    publish(tmp_path / "thing", lambda draft: None)
    assert [path.exists() for path in left] == [False, True]


SLOW = """
import sys, time
from pathlib import Path
from selfrag.demo.download import publish

def build(draft):
    with Path(sys.argv[2]).open("a") as log:
        log.write("built\\n")
    (draft / "file").write_text("half")
    time.sleep(2)
    (draft / "file").write_text("whole")

print((publish(Path(sys.argv[1]), build) / "file").read_text())
"""


def test_processes_that_start_at_once_build_once_and_wait_for_it(tmp_path: Path) -> None:
    target, log = tmp_path / "cache" / "thing", tmp_path / "log"
    command = [sys.executable, "-c", SLOW, str(target), str(log)]
    children = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(3)]
    assert [child.communicate(timeout=300) for child in children] == [("whole\n", "")] * 3
    assert log.read_text() == "built\n"
    assert contents(tmp_path / "cache") == ["file", "thing"]

    child = subprocess.Popen([*command[:-2], str(tmp_path / "killed"), str(log)])
    while log.read_text() == "built\n":
        time.sleep(0.01)
    child.kill()  # and holds nobody up
    child.wait()
    publish(tmp_path / "killed", lambda draft: (draft / "file").write_text("second") and None)
    assert (tmp_path / "killed" / "file").read_text() == "second"


def test_articles_become_passages_with_stable_ids_long_ones_in_parts(tmp_path: Path) -> None:
    sentence = "This sentence has exactly seven words here. "
    articles = {
        "Short": {"title": "Short", "extract": "A short one."},
        "Long": {"title": "Long (of many words)", "extract": (sentence * 30).strip()},
        "Last": {"title": "Last", "extract": "Ends here. 最后"},
    }
    file = tmp_path / "summaries.json"
    file.write_text(json.dumps(articles), encoding="utf-8")
    short, *long, last = passages(file)
    assert (short.id, short.text) == ("wiki-00000", "A short one.")
    assert (last.id, last.text) == ("wiki-00002", "Ends here. 最后")
    assert [passage.id for passage in long] == ["wiki-00001", "wiki-00001-2", "wiki-00001-3"]
    for passage in long:
        assert passage.title == "Long (of many words)"
        assert len(passage.text.split()) <= 100
        assert passage.text.startswith("This")
        assert passage.text.endswith("here.")


def test_selfrag_cache_wins_over_xdg_and_a_relative_xdg_folder_is_ignored(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SELFRAG_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, home in (("relative/folder", ".cache"), (str(tmp_path / "xdg"), "xdg")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_home() == tmp_path / home / "selfrag"
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "own"))
    assert cache_home() == tmp_path / "own"
