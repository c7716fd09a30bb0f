"""Directories that replace others: killed at any point, one of the two is there, whole, under its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from retrieval import UserError
from retrieval.atomic import locked_directory, new_directory, publish, recover, write_text
from selfrag.jsonl import write_jsonl

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")


def killed_at(step, work):
    """Run `work` in a child that is killed right before its rename number `step`; whether it came that far."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    seen, rename = 0, Path.rename

    def counted(self, target):
        nonlocal seen
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)

    Path.rename = counted
    try:
        work()
    finally:
        os._exit(0)


def directory(path, content):
    path.mkdir()
    (path / "file").write_text(content)
    return path


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    """Of the renames old away, new in its place, old to the rubbish: one kill before each, and none."""
    for step, left in ((1, "old"), (2, "old"), (3, "new"), (4, "new")):
        home = tmp_path / str(step)
        home.mkdir()
        target, finished = directory(home / "index[1]", "old"), directory(home / "finished", "new")
        directory(home / "index", "another")
        assert killed_at(step, lambda new=finished, old=target: publish(new, old)) == (step < 4)
        assert target.exists() == (step != 2)
        recover(target)
        assert (target / "file").read_text() == left
        with new_directory(target) as draft:
            (draft / "file").write_text("newer")
        assert (target / "file").read_text() == "newer"
        assert {path.name for path in home.iterdir()} <= {"index", "index[1]", "finished"}


def test_a_reader_that_recovers_meanwhile_does_not_stop_the_writer(tmp_path):
    target, end = directory(tmp_path / "index", "0"), threading.Event()

    def read():
        while not end.is_set():
            recover(target)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(100):
            publish(directory(tmp_path / "finished", str(number)), target)
            assert (target / "file").read_text() == str(number)
    finally:
        end.set()
        reader.join()
    recover(target)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_files_have_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_jsonl(tmp_path / "rows.jsonl", [{"id": "a"}])
        write_text(tmp_path / "card.md", "x")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


FORKS = """
import os, sys, time
from retrieval.atomic import locked_directory
with locked_directory(__import__("pathlib").Path(sys.argv[1])):
    if not os.fork():
        time.sleep(60)  # lives on
        os._exit(0)
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
print("left", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("ending", ["killed", "left"])
def test_a_forked_child_that_lives_on_holds_nobody_up(tmp_path, ending):
    command = [sys.executable, "-c", FORKS, str(tmp_path / "index"), "0" if ending == "left" else "60"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        try:
            assert parent.stdout.readline() == "held\n"
            if ending == "left":
                assert parent.stdout.readline() == "left\n"
            else:
                with pytest.raises(UserError, match="another process is writing"), locked_directory(tmp_path / "index"):
                    pass
                parent.kill()
                parent.wait()
            deadline = time.monotonic() + 20
            while _refused(tmp_path / "index"):  # the child lets go as soon as it runs
                assert time.monotonic() < deadline
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_forked_child_neither_holds_nor_frees_the_lock_of_its_parent(tmp_path):
    with locked_directory(tmp_path / "index"):
        pid = os.fork()
        if not pid:
            os._exit(7 if _refused(tmp_path / "index") else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert _refused(tmp_path / "index")
    assert not _refused(tmp_path / "index")


def _refused(path):
    try:
        with locked_directory(path):
            return False
    except UserError:
        return True
