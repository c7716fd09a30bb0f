"""What only a real process can show: signals, a full disk, and what an import costs."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and limits")

BUILD = """
import sys
import numpy as np
import retrieval.build
from retrieval import Passage, UserError, index_passages
from retrieval.encoders import EncoderCard

retrieval.build.BLOCK_ROWS = 10

class Lengths:
    card = EncoderCard("lengths", "1", 64)

    def encode(self, texts, batch_size=64):
        return np.array([[len(text) * n % 13 for n in range(64)] for text in texts], np.float32)

passages = [Passage(str(n), "text " * (n % 17 + 1) + str(n)) for n in range(150)]
try:
    index_passages(passages, sys.argv[1], encoder=Lengths())
except UserError as error:
    sys.exit(f"user error: {error}")
"""


def finish(out, limit):
    """Build with files of at most so many bytes."""

    def tiny_disk():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-c", BUILD, str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, preexec_fn=tiny_disk)
    return done.returncode, done.stderr


@pytest.mark.parametrize("limit", [2_000, 20_000])  # in the corpus (some 12 kB), and in the vectors (some 38 kB)
def test_a_full_disk_is_one_line_and_the_next_run_finishes(tmp_path, limit):
    status, errors = finish(tmp_path / "index", limit)
    assert status == 1
    assert errors.startswith("user error: no space left while writing")
    assert errors.count("\n") == 1
    assert not (tmp_path / "index").exists()
    assert finish(tmp_path / "index", 1 << 30) == (0, "")
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

    def encode(self, texts, batch_size=64):
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
        command = [sys.executable, "-c", CHANGES, str(tmp_path / name), str(tmp_path / f"{name}.log")]
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
    whole, found = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("whole", "index"))
    assert found["checksums"] == whole["checksums"]
    encoded = [sum(map(int, (tmp_path / f"{name}.log").read_text().split())) for name in ("whole", "index")]
    assert encoded[0] <= encoded[1] <= encoded[0] + 50 * kills
