"""The default model and its intrinsics: whole, small, made only once, and those that were measured."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from json_files import read_json

from selfrag import SelfRAG
from selfrag.cli.doctor import check_checkpoint
from selfrag.common.errors import UserError
from selfrag.demo import (
    ADAPTER,
    BASE_MODEL,
    asset_path,
    base_path,
    encoder_path,
    index_path,
    model_path,
)
from selfrag.demo.download import fetch
from selfrag.demo.intrinsics import adapter_paths
from selfrag.engines.adapters import read_adapter, shipped_adapters, shipped_weights
from selfrag.intrinsics.catalog import PAPER, AdapterCard, check_cards
from selfrag.intrinsics.model_library import Library
from selfrag.intrinsics.named import adapters_of
from selfrag.judges.learned import ScoreCalibrator, Weighing

ADAPTED, LEARNED = {"query_rewrite"}, {"hallucination_detection", "uncertainty"}
FILES = {
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "intrinsic.json",
    "training.json",
}


def test_the_front_doors_take_what_is_shipped_and_nothing_else():
    names = list(PAPER)
    assert adapters_of(names, "demo") == {
        name: str(path) for name, path in shipped_adapters("demo").items()
    }
    assert adapters_of(names, "demo-base") == {}
    assert set(shipped_adapters("demo")) == ADAPTED
    assert set(shipped_weights("demo")) == LEARNED
    assert set(adapter_paths()) == ADAPTED | LEARNED


def test_adapters_are_whole_and_small_and_name_no_place_of_a_machine():
    found = shipped_adapters("demo")
    for name, folder in found.items():
        assert {path.name for path in folder.iterdir()} == FILES
        assert read_adapter(name, folder).rank > 0  # nothing that vLLM would refuse
        assert AdapterCard.read(folder).intrinsic == name
    # with today's prompts
    check_cards({name: str(folder) for name, folder in found.items()}, "chat")
    assert (
        sum(
            path.stat().st_size
            for folder in found.values()
            for path in folder.iterdir()
        )
        < 25 * 10**6
    )
    for path in (
        path for folder in adapter_paths().values() for path in folder.iterdir()
    ):
        if path.suffix in {".md", ".json"}:
            assert re.search(r"(?<![\w./:])/\w+/", path.read_text()) is None, path


def weights(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def trained_on(adapter):
    """Checksums of the weights that the stages of an adapter started from."""
    record = read_json(adapter / "training.json")
    return {
        stage["inputs"]["base"]
        for stage in record.get("stages", [record])
        if "inputs" in stage
    }


@pytest.mark.demo
def test_the_weights_made_here_are_those_that_were_measured_and_trained_for():
    assert [
        finding
        for finding in check_checkpoint("demo", model_path())
        if finding.status != "ok"
    ] == []
    made, base = weights(model_path()), weights(base_path())
    for name, folder in shipped_adapters("demo").items():
        assert trained_on(folder) == {made}, (
            f"{name}: `selfrag train adapter` trains it again"
        )
    assert trained_on(ADAPTER) == {base}
    learned = Weighing.read(shipped_weights("demo")["hallucination_detection"])
    assert learned.model == made, (
        "scripts/demo_model/learn_combined.py learns them again"
    )
    assert ScoreCalibrator.read(shipped_weights("demo")["uncertainty"])(4.0) > 0.5
    measured = (Path(__file__).parents[2] / "docs/records/results.md").read_text(
        encoding="utf-8"
    )
    assert all(
        f"model.safetensors {sha256[:12]}" in measured for sha256 in (made, base)
    )


MAKE = "from selfrag.demo import model_path; print(model_path())"


@pytest.mark.demo
@pytest.mark.slow
def test_another_processor_makes_the_same_weights(tmp_path):
    """From the downloaded file, without the instructions that this machine may have."""
    fetch(BASE_MODEL)
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / asset_path(BASE_MODEL).name).symlink_to(
        asset_path(BASE_MODEL)
    )
    there = {
        "SELFRAG_CACHE": str(tmp_path),
        "OMP_NUM_THREADS": "2",
        "ATEN_CPU_CAPABILITY": "avx2",
    }
    there |= {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX",
    }
    done = subprocess.run(
        [sys.executable, "-c", MAKE],
        env=os.environ | there,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "measured" not in done.stderr
    assert weights(Path(done.stdout.strip())) == weights(model_path())


@pytest.mark.demo
def test_the_index_finds_what_it_should():
    from retrieval import open_index

    (found,) = open_index(index_path(), encoder_path())(
        ["Who discovered radium and polonium?"], 5
    )
    assert any("Curie" in passage.title for passage in found)


@pytest.mark.demo
def test_the_library_of_the_demo_model_judges_with_what_was_measured_best():
    with Library.from_pretrained(
        "demo", engine="transformers", max_model_len=1024
    ) as library:
        assert set(library.adapters) == ADAPTED
        assert {name: library[name].by.name for name in PAPER} == {
            "answerability": "tokens",
            "citation_generation": "overlap",
            "hallucination_detection": "combined",
            "query_rewrite": "adapter",
            "uncertainty": "tokens",
        }
        radium = "Radium was discovered by Marie and Pierre Curie in 1898."
        turns = [{"role": "user", "content": "Who discovered radium?"}]
        faithful = [
            library["hallucination_detection"](
                [*turns, {"role": "assistant", "content": said}], [radium]
            )
            for said in (
                "Marie and Pierre Curie discovered radium.",
                "Goethe found it in Weimar.",
            )
        ]
        assert [found.is_hallucinated for found in faithful] == [False, True]
        assert library["query_rewrite"](turns).text == "Who discovered radium?"
    # which is not given the adapters of this package
    with pytest.raises(UserError, match="no server at"):
        SelfRAG.from_pretrained(
            "demo", engine="http://127.0.0.1:9", judges=["query_rewrite"], retries=0
        )
