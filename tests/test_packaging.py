"""The wheel: what is in it, and that it answers a question where only the wheel was installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("selfrag", "critic", "retrieval")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without a network."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it is in the extra dev")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", out, ROOT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (file,) = out.glob("selfrag-*.whl")
    return file


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a new environment with the wheel; its dependencies are read from this one to save gigabytes."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    # A path in a .pth file comes after the environment's own packages, and .pth files in it (an editable checkout) are
    # not followed: our code can only come from the wheel.
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(site) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel]
    subprocess.run(install, check=True, capture_output=True)
    return folder / "bin"


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout: no list of files to compare with")
    assert sorted(set(tracked.stdout.split()) - names) == []
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)


def test_the_licence_travels_along(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (licence,) = [name for name in archive.namelist() if name.endswith("LICENSE") and ".dist-info/" in name]
    assert "Apache License" in archive.read(licence).decode()


def test_the_command_is_installed(clean: Path, tmp_path: Path) -> None:
    shown = subprocess.run([clean / "selfrag", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "ask" in shown.stdout
    code = "import selfrag; print(selfrag.__file__)"
    found = subprocess.run([clean / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(clean.parent)


@pytest.mark.demo
def test_the_wheel_answers_a_question(clean: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [clean / "selfrag", "ask", "Who discovered radium?", "--segments", "1", "--json"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["text"]
    assert answer["usage"]["generated_tokens"] > 0
