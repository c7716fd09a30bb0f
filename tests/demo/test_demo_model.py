"""The default model on this machine: whole, and made only once. Downloads it the first time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from critic.demo import critic_path
from selfrag.cli.doctor import check_checkpoint
from selfrag.demo import encoder_path, index_path, model_path
from selfrag.demo.download import BASE_MODEL, asset_path, fetch
from selfrag.demo.model import ADAPTER, base_path

pytestmark = pytest.mark.demo


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for must be there: pip reaches nothing."""
    model_path(), encoder_path(), index_path()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")


def test_the_checkpoint_has_every_reflection_token_trained() -> None:
    folder = model_path()
    findings = list(check_checkpoint("demo", folder))
    assert [finding for finding in findings if finding.status != "ok"] == []


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def trained_on(adapter: Path) -> set[str]:
    """Checksums of the weights that the stages of an adapter started from."""
    record = json.loads((adapter / "training.json").read_text())
    return {stage["inputs"]["base"] for stage in record.get("stages", [record]) if "inputs" in stage}


def test_the_weights_made_here_are_those_that_were_measured() -> None:
    (intrinsic,) = [path.parent for path in ADAPTER.parent.glob("intrinsics/*/training.json")]
    assert trained_on(intrinsic) == {weights(model_path())}
    assert trained_on(ADAPTER) == {weights(base_path())}
    records = [
        json.loads(path.read_text()) for path in (Path(__file__).parents[2] / "docs/records/results").glob("*.json")
    ]
    models = {record["manifest"]["identity"]["model"]["model.safetensors"] for record in records}
    assert models > {weights(model_path()), weights(base_path())}


def have_only(given: str, cache: Path) -> None:
    """A cache with the downloaded file of the base model, or with the base model itself."""
    place = asset_path(BASE_MODEL) if given == "assets" else base_path().parent
    fetch(BASE_MODEL)
    (cache / given).mkdir()
    (cache / given / place.name).symlink_to(place)


MAKE = "from selfrag.demo.model import model_path; print(model_path())"


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "threads", "given"), [("default", "1", "assets"), ("avx2", "2", "models")])
def test_another_processor_makes_the_same_weights(tmp_path: Path, capability: str, threads: str, given: str) -> None:
    """From the downloaded file, or from the base, without the instructions that this machine may have."""
    have_only(given, tmp_path)
    there = {"SELFRAG_CACHE": str(tmp_path), "OMP_NUM_THREADS": threads, "ATEN_CPU_CAPABILITY": capability}
    there |= {"ONEDNN_MAX_CPU_ISA": "AVX2", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX"}
    done = subprocess.run(
        [sys.executable, "-c", MAKE], env=os.environ | there, capture_output=True, text=True, timeout=300, check=True
    )
    assert "measured" not in done.stderr
    assert weights(Path(done.stdout.strip())) == weights(model_path())


def test_weights_that_were_not_measured_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    have_only("models", tmp_path)
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path))
    monkeypatch.setattr("critic.demo._MERGED", "0" * 64)
    folder = critic_path()
    said = [line for line in capfd.readouterr().err.splitlines() if "measured" in line]
    assert len(said) == 1
    assert said[0].startswith(f"{folder / 'model.safetensors'}: SHA-256 ba5f6d7526d6.., not 000000000000..")


def test_nothing_is_made_twice(no_network: None) -> None:
    def state(folder: Path) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}

    before = [state(path()) for path in (model_path, encoder_path, index_path)]
    assert before == [state(path()) for path in (model_path, encoder_path, index_path)]


def test_the_index_finds_what_it_should() -> None:
    from retrieval import open_index

    (found,) = open_index(index_path(), encoder_path())(["Who discovered radium and polonium?"], 5)
    assert any("Curie" in passage.title for passage in found)
