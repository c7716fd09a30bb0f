"""`index sync --follow` and `serve --watch` as processes of their own: a file changes, and the index follows."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import tiny

from retrieval import UserError
from retrieval.index import load_manifest, open_parts
from selfrag.cli.main import main

pytest.importorskip("watchfiles")
SYNC = "index sync index docs --encoder none"
PATIENCE = 180  # seconds for each step; a busy machine takes long to load an encoder


@contextmanager
def running(folder, *arguments):
    """Run a command in a folder, and give the lines that it writes."""
    command = [sys.executable, "-m", "selfrag", *arguments]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root, "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    lines = queue.Queue()
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:

        def read():
            for line in process.stdout:
                lines.put(line)

        threading.Thread(target=read, daemon=True).start()
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def texts(index):
    """The texts of an index; none before there is one."""
    try:
        load_manifest(index)
        return {row.passage.text for row in open_parts(index)[1].corpus.live()}
    except UserError:
        return set()


def wait_for(holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/bee.txt").write_text("Bees make honey.")
    return tmp_path


def test_a_watching_sync_follows_new_changed_and_removed_files(folder):
    index, docs = folder / "index", folder / "docs"
    with running(folder, *f"{SYNC} --follow".split()):
        wait_for(lambda: texts(index) == {"Bees make honey."})
        (docs / "owl.txt").write_text("Owls hunt mice.")
        wait_for(lambda: texts(index) == {"Bees make honey.", "Owls hunt mice."})
        (docs / "owl.txt").write_text("Owls sleep.")
        (docs / "bee.txt").unlink()
        wait_for(lambda: texts(index) == {"Owls sleep."})


def test_a_watching_server_answers_from_the_new_state(folder, monkeypatch):
    tiny.save_llama(folder / "model")
    command = (
        "serve --model model --engine transformers --index index --watch docs --port 0"
    )
    monkeypatch.chdir(folder)
    assert main(SYNC.split()) == 0
    with running(folder, *command.split()) as lines:
        line = lines.get(timeout=PATIENCE)
        while not line.startswith("serving model at "):
            line = lines.get(timeout=PATIENCE)
        with httpx.Client(base_url=line.split()[-1], timeout=PATIENCE) as client:

            def found():
                return client.post(
                    "/retrieve", json={"queries": ["owls"], "topk": 2}
                ).text

            assert client.get("/health").json()["index"]["generation"] == 1
            assert "Owls" not in found()
            (folder / "docs/none.txt").write_text("")
            (folder / "docs/owl.txt").write_text("Owls hunt mice.")
            wait_for(lambda: client.get("/health").json()["index"]["generation"] == 2)
            assert "Owls hunt mice." in found()
        said = ""
        while not said.startswith("index synced: 1 file added, 0 changed, 0 removed"):
            before, said = said, lines.get(timeout=PATIENCE)
        assert "none.txt: no passages of it are in the index" in before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_ends_the_watch(folder, monkeypatch, capsys):
    class Finalised:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def watch(*arguments):
        Finalised()
        assert arguments[-1].wait(PATIENCE)

    monkeypatch.chdir(folder)
    monkeypatch.setattr("retrieval.watching.watch_files", watch)
    assert main(f"{SYNC} --follow".split()) == 130
    assert capsys.readouterr().err.endswith("selfrag: interrupted\n")
