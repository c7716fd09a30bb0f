"""What only a real process can show: kills, locks, a full disk, and the directory that is whole after each."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from full_disk import LIMITED
from json_files import read_json

from retrieval import UserError
from selfrag.common.atomic import locked_directory, new_directory, publish, write_text
from selfrag.common.finished import recover
from selfrag.common.jsonl import write_jsonl

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="POSIX signals, limits and fork"
)


ROOT = Path(__file__).parents[2]


BUILD = """
import sys
import numpy as np
import retrieval.build
from retrieval import Passage, UserError, index_passages
from retrieval.encoders import EncoderCard

retrieval.build.BLOCK_ROWS = 10

class Lengths:
    card = EncoderCard("lengths", "1", 64)

    def encode(self, texts):
        return np.array([[len(text) * n % 13 for n in range(64)] for text in texts], np.float32)

passages = [Passage(str(n), "text " * (n % 17 + 1) + str(n)) for n in range(150)]
try:
    index_passages(passages, sys.argv[1], encoder=Lengths())
except UserError as error:
    sys.exit(f"user error: {error}")
"""


def finish(process, out, limit):
    """Build with files of at most so many bytes."""

    # Set inside the child: after a fork of this process, threads of other tests' libraries may write to its stderr.
    program = LIMITED.format(size=limit) + BUILD
    done = process(sys.executable, "-c", program, out, cwd=ROOT, timeout=300)
    return done.returncode, done.stderr


# in the corpus (some 12 kB), and in the vectors (some 38 kB)
@pytest.mark.parametrize("limit", [2_000, 20_000])
def test_a_full_disk_is_one_line_and_the_next_run_finishes(tmp_path, process, limit):
    status, errors = finish(process, tmp_path / "index", limit)
    assert status == 1
    assert errors.startswith("user error: no space left while writing")
    assert errors.count("\n") == 1
    assert not (tmp_path / "index").exists()
    assert finish(process, tmp_path / "index", 1 << 30) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


# Every change of an index, one after the other; run again, it goes on with the first that is not done.
CHANGES = """
import sys, time
import numpy as np
import retrieval.build
from retrieval import Passage, add_passages, compact_index, index_passages, remove_passages
from retrieval.encoders import EncoderCard
from retrieval.index import load_manifest

retrieval.build.BLOCK_ROWS = 50
out, log = sys.argv[1:]
vectors = np.random.default_rng(0).standard_normal((2000, 16)).astype(np.float32)

class Slow:
    card = EncoderCard("slow", "1", 16)

    def encode(self, texts):
        time.sleep(0.005)
        with open(log, "a") as file:
            file.write(f"{len(texts)}\\n")
        return vectors[[int(text.split()[-1]) for text in texts]]

passages = [Passage(str(n), f"text word{n % 37} {n}") for n in range(2000)]
try:
    load_manifest(out)
except retrieval.UserError:
    index_passages(passages[:1000], out, encoder=Slow())
if load_manifest(out).rows == 1000:
    add_passages(out, passages[1000:], encoder=Slow())
if load_manifest(out).added and not load_manifest(out).removed:
    remove_passages(out, [str(n) for n in range(0, 2000, 10)])
if load_manifest(out).added:
    compact_index(out, kind="ivf")
if load_manifest(out).kind == "ivf":
    compact_index(out, kind="rabitq", language="german")
"""


def test_changes_that_are_killed_end_in_the_same_index(tmp_path):
    """Kills at random: the same bytes in the end, and at most one block encoded twice for each."""
    pytest.importorskip("faiss")
    chance = random.Random(0)

    def run(name, seconds):
        command = [
            sys.executable,
            "-c",
            CHANGES,
            tmp_path / name,
            f"{tmp_path}/{name}.log",
        ]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        try:
            errors = process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return False
        assert process.returncode == 0, errors
        return True

    start = time.monotonic()
    assert run("whole", 300)
    needed, kills = time.monotonic() - start, 0
    while not run("index", chance.uniform(0.15, 0.9) * needed if kills < 3 else 300):
        kills += 1
    whole, killed = (
        read_json(tmp_path / name / "manifest.json") for name in ("whole", "index")
    )
    assert killed["checksums"] == whole["checksums"]
    encoded = []
    for name in ("whole", "index"):
        log = (tmp_path / f"{name}.log").read_text()
        encoded.append(sum(map(int, log.split())))
    assert encoded[0] <= encoded[1] <= encoded[0] + 50 * kills


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
        target = directory(home / "index[1]", "old")
        finished = directory(home / "finished", "new")
        directory(home / "index", "another")
        assert killed_at(step, lambda new=finished, old=target: publish(new, old)) == (
            step < 4
        )
        assert target.exists() == (step != 2)
        recover(target)
        assert (target / "file").read_text() == left
        with new_directory(target) as draft:
            (draft / "file").write_text("newer")
        assert (target / "file").read_text() == "newer"
        left_over = {path.name for path in home.iterdir()}
        assert left_over <= {"index", "index[1]", "finished"}


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


def test_files_have_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_jsonl(tmp_path / "rows.jsonl", [{"id": "a"}])
        write_text(tmp_path / "card.md", "x")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


HOLDER = """
import os
import sys
import time
from pathlib import Path

from retrieval import UserError
from selfrag.common.atomic import locked_directory

target = Path(sys.argv[1])
with locked_directory(target):
    if not os.fork():
        try:
            with locked_directory(target):
                print("free", flush=True)
        except UserError:
            print("held", flush=True)
        os._exit(0)
    os.wait()
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    sys.stdin.readline()
print("left", flush=True)
sys.stdin.readline()
"""
"""Holds a lock, says what a forked child sees of it, and has another that lives on."""


@pytest.mark.parametrize("ending", ["left", "killed"])
def test_a_forked_child_that_lives_on_neither_holds_nor_frees_the_lock(
    tmp_path, ending
):
    # A process of its own: a fork of this one may die of the libraries of other tests.
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "index")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        child = int(holder.stdout.readline())
        try:
            assert is_held(tmp_path / "index")
            if ending == "killed":
                holder.kill()
                holder.wait()
            else:
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert holder.stdout.readline() == "left\n"
            deadline = time.monotonic() + 20
            # The child lets go as soon as it runs.
            while is_held(tmp_path / "index"):
                assert time.monotonic() < deadline
        finally:
            os.kill(child, signal.SIGKILL)
            holder.kill()


def is_held(path):
    try:
        with locked_directory(path):
            return False
    except UserError:
        return True
