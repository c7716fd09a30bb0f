"""Fixtures of the engine tests: one `vllm serve` for a whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lora_on_the_spot import save_adapter
from served_vllm import ServedVLLM

CONTEXT = 1024


@pytest.fixture(scope="session")
def lora_adapter(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a LoRA adapter for `tiny_llama`."""
    return save_adapter(tiny_llama, tmp_path_factory.mktemp("lora") / "adapter")


@pytest.fixture(scope="session")
def _served(tiny_llama: Path, lora_adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedVLLM]:
    pytest.importorskip("vllm", reason="vllm is not installed")
    served = ServedVLLM(
        tiny_llama,
        tmp_path_factory.mktemp("served") / "log.txt",
        *("--max-model-len", str(CONTEXT), "--enable-lora", "--max-lora-rank", "8"),
        *("--max-loras", "2"),  # one more than there are: see engine_arguments in selfrag/engines/vllm.py
        *("--lora-modules", f"extra={lora_adapter}"),
    )
    yield served
    served.kill()


@pytest.fixture
def vllm_server(_served: ServedVLLM) -> ServedVLLM:
    """A running `vllm serve` of `tiny_llama` with the adapter `extra`; started again if a test killed it."""
    _served.ensure()
    return _served
