"""The cache: where it is, and that a thing is in it whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selfrag.demo.download import cache_home, publish
from selfrag.errors import UserError
from selfrag.training.export import published


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_selfrag_cache_wins_over_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("SELFRAG_CACHE", raising=False)
    assert cache_home() == tmp_path / "xdg" / "selfrag"
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "own"))
    assert cache_home() == tmp_path / "own"


def test_a_relative_xdg_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SELFRAG_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_home() == tmp_path / ".cache" / "selfrag"


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    calls = []

    def build(draft: Path) -> None:
        calls.append(draft)
        (draft / "file").write_text("content")

    target = tmp_path / "deep" / "thing"
    assert publish(target, build) == target
    assert publish(target, build) == target
    assert len(calls) == 1
    assert contents(tmp_path / "deep") == ["file", "thing"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bug"), UserError("no")])
def test_a_build_that_stops_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def build(draft: Path) -> None:
        (draft / "half").write_text("half")
        raise error

    with pytest.raises(type(error)):
        publish(tmp_path / "thing", build)
    assert contents(tmp_path) == []


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


def test_nothing_is_started_without_the_room_it_needs(tmp_path: Path) -> None:
    def build(draft: Path) -> None:
        pytest.fail("started")

    with pytest.raises(UserError, match=r"MB free, .* MB needed"):
        publish(tmp_path / "thing", build, needs=2**60)


def test_a_cache_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("I am a file")
    with pytest.raises(UserError, match=r"cannot write to .*cache.* set SELFRAG_CACHE"):
        publish(tmp_path / "cache" / "thing", lambda draft: None)


def test_drafts_of_killed_processes_are_removed_when_they_are_old(tmp_path: Path) -> None:
    for name, age in (("old", 2 * 24 * 3600), ("fresh", 60)):
        draft = tmp_path / f".{name}.0000.partial"
        draft.mkdir()
        then = time.time() - age
        os.utime(draft, (then, then))
    publish(tmp_path / "thing", lambda draft: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fresh.0000.partial", "thing"]


def test_the_draft_of_a_merged_model_that_was_killed_is_one_of_them(tmp_path: Path) -> None:
    """A merge into a draft of the cache has a draft of its own beside it."""
    with published(tmp_path / ".model.0000.partial") as draft:
        shutil.copytree(draft, left := tmp_path / draft.name.replace("model", "killed"))
    os.utime(left, (0, 0))
    publish(tmp_path / "thing", lambda draft: None)
    assert not left.exists()


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


def test_a_process_that_was_killed_holds_nobody_up(tmp_path: Path) -> None:
    target, log = tmp_path / "cache" / "thing", tmp_path / "log"
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(target), str(log)])
    while not log.exists():
        time.sleep(0.01)
    child.kill()
    child.wait()
    publish(target, lambda draft: (draft / "file").write_text("second") and None)
    assert (target / "file").read_text() == "second"
