"""What does an installation without torch cost? `plain_installation.py ENVIRONMENT`.

The environment is a virtual one after `pip install selfrag`. Each program is a process of its own. Its processor time
says most on a machine with other work; wall time is that of a person who waits. The demo's files must be in the cache:
the first answer, which makes them, is not counted.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from scripts.benchmarks.measure import Report
from scripts.command import command

QUESTION = "Who painted Guernica?"
COMMANDS = {"selfrag --help": ["--help"], "selfrag ask --help": ["ask", "--help"]}
FORMATS = ("float32", "int8")
PORT = 8765


@command
def main(
    environment: Path,
    *,
    rounds: int = 5,
    out: Path | None = None,
) -> None:
    """Print medians of the commands, the memory of the server, and the size.

    Args:
        environment: folder of a virtual environment.
        rounds: how often each command runs.
        out: JSON file with everything measured.
    """
    report = Report(out)
    program = str(environment / "bin" / "selfrag")
    commands = dict(COMMANDS)
    for dtype in FORMATS:
        words = ["ask", QUESTION, "--segments", "1", "--dtype", dtype]
        commands[f"selfrag ask, a second time, {dtype}"] = words
    for name, words in commands.items():
        run([program, *words])  # reads files from the disk, and makes what is not there
        times = np.array([run([program, *words]) for _ in range(rounds)])
        wall, processor = np.median(times, axis=0)
        report.add(what=name, seconds=float(wall), processor=float(processor))
    for dtype in FORMATS:
        name = f"selfrag serve, one answer, {dtype}"
        report.add(what=name, MiB=memory_of_server(program, dtype))
    report.add(what="size of the environment", MB=size(environment) / 1e6)
    report.print()


def run(words: Sequence[str]) -> tuple[float, float]:
    """Return the wall time and the processor time of a program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)  # noqa: S603 - our own program
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used


def memory_of_server(program: str, dtype: str) -> float:
    """Return the most memory of a server that has answered a question, in MiB."""
    words = [program, "serve", "--port", str(PORT), "--dtype", dtype]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as server:  # noqa: S603
        try:
            ask(server)
            _, _, line = (
                Path(f"/proc/{server.pid}/status").read_text().partition("VmHWM:")
            )
            return int(line.split()[0]) / 1024
        finally:
            server.terminate()


def ask(server: subprocess.Popen[Any]) -> None:
    """Ask a server one question, as soon as it listens."""
    messages = [{"role": "user", "content": QUESTION}]
    while True:
        try:
            reply = httpx.post(
                f"http://127.0.0.1:{PORT}/v1/chat/completions",
                json={"model": "demo", "messages": messages},
                timeout=120,
            )
        except httpx.ConnectError:
            if server.poll() is not None:
                raise
            time.sleep(0.2)
            continue
        reply.raise_for_status()
        return


def size(folder: Path) -> int:
    """Return the bytes of an environment, without pip and compiled modules."""
    total = 0
    for path in folder.rglob("*"):
        is_ours = not {"__pycache__", "pip"} & set(path.parts)
        if is_ours and path.is_file() and not path.is_symlink():
            total += path.stat().st_size
    return total


if __name__ == "__main__":
    main()
