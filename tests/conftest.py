"""Shared fixtures. `tests/engines/tiny.py` is importable as `tiny` from every test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "engines"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a model hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: threads that wait for each other cost more than they bring

import tiny

settings.register_profile("selfrag", deadline=None)  # wall-clock deadlines fail on a busy machine
settings.load_profile("selfrag")


@pytest.fixture(scope="session")
def demo_files() -> None:
    """Model, encoder and index of the demo, made where they are not: by a process that may use every core."""
    code = "from selfrag.demo import encoder_path, index_path, model_path; model_path(), encoder_path(), index_path()"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


@pytest.fixture(autouse=True)
def demo_files_first(request: pytest.FixtureRequest) -> None:
    """Tests that are marked `demo` find them."""
    if request.node.get_closest_marker("demo"):
        request.getfixturevalue("demo_files")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Llama with a byte-level tokenizer and the reflection tokens; vLLM loads it too."""
    return tiny.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def tiny_llama_spm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a llama-style sentencepiece tokenizer."""
    return tiny.save_llama(tmp_path_factory.mktemp("llama-spm"), family="sentencepiece")


@pytest.fixture(scope="session")
def tiny_llama_plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama without reflection tokens: a base model nobody has trained."""
    return tiny.save_llama(tmp_path_factory.mktemp("llama-plain"), reflection=False)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random GPT-2 with tied embeddings."""
    return tiny.save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def tiny_gpt2_untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random GPT-2 with an output matrix of its own."""
    return tiny.save_gpt2(tmp_path_factory.mktemp("gpt2-untied"), tie=False)
