"""A lock ends with the process that took it, whatever that process has forked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retrieval import UserError
from retrieval.atomic import locked_directory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")

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

FILL = """
import sys
from pathlib import Path
from selfrag.demo.download import publish
publish(Path(sys.argv[1]), lambda draft: None)
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


def test_a_cache_is_filled_though_a_child_of_its_last_maker_lives(tmp_path):
    from selfrag.demo.download import publish

    child = []

    def build(draft):
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        child.append(pid)
        raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            publish(tmp_path / "thing", build)
        subprocess.run(
            [sys.executable, "-c", FILL, str(tmp_path / "thing")], cwd=Path(__file__).parents[2], timeout=30, check=True
        )
    finally:
        os.kill(child[0], signal.SIGKILL)
        os.waitpid(child[0], 0)
    assert (tmp_path / "thing").exists()
