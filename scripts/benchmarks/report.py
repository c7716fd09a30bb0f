"""Runs steps in processes of their own, each with a time limit, and keeps one report of all of them.

The report is written again whenever a step has a new result, so a run that is cut short keeps what it has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.benchmarks.job import Settings
from selfrag.common.atomic import write_json, write_text
from selfrag.common.untrusted import printable
from selfrag.render.tables import compact, escape

OFFLINE = {"HF_HUB_OFFLINE": "1"}
"""Variables of every step: without a network, a question to a model hub would wait for its time limit."""

LOG_LINES = 40
"""Lines of a log that are kept."""

LOOK_SECONDS = 1.0
"""Time between two looks at the results of a running step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the run."""

    name: str
    title: str  # heading of its table
    seconds: float | None  # time limit; None for whatever the run has left
    calls: str  # MODULE.FUNCTION of this folder, imported in the process of the step
    notes: tuple[str, ...] = ()  # what a reader of the table must know


@dataclass(slots=True)
class StepResult:
    """How far a step came."""

    name: str
    title: str
    notes: tuple[str, ...]
    status: str = "waiting"  # waiting, running, done, skipped, failed, stopped
    reason: str = ""  # why it was skipped, failed or stopped
    limit: float | None = None  # seconds that it might take
    seconds: float = 0.0  # seconds that it took
    results: list[dict[str, Any]] = field(default_factory=list)  # lines of its table
    # last lines that it wrote, where it failed or was stopped
    log: list[str] = field(default_factory=list)


def run_steps(
    steps: Sequence[Step], settings: Settings, out: Path, seconds: float, program: Path
) -> list[StepResult]:
    """Run the steps one after the other and keep `gpu.json` and `gpu.md` in `out` up to date.

    Args:
        steps: in this order.
        settings: what every step is told.
        out: folder of the report.
        seconds: time limit of all steps together.
        program: script that runs one step: `PROGRAM step NAME --work WORK --seconds S`.
    """
    report = [StepResult(step.name, step.title, step.notes) for step in steps]
    start = time.monotonic()
    write_report(report, out)
    for step, result in zip(steps, report, strict=True):
        left = max(0.0, seconds - (time.monotonic() - start))
        result.limit = left if step.seconds is None else min(step.seconds, left)
        run_step(result, settings, program, report, out)
        write_report(report, out)
        print(
            f"{result.name}: {result.status} after {result.seconds:.0f} s {result.reason}",
            file=sys.stderr,
        )
    return report


def run_step(
    result: StepResult,
    settings: Settings,
    program: Path,
    report: Sequence[StepResult],
    out: Path,
) -> None:
    """Run one step in a process of its own, until it ends or its time is over."""
    limit = result.limit or 0.0
    if limit < LOOK_SECONDS:
        result.status, result.reason = "skipped", "no time was left for it"
        return
    work = Path(settings.work)
    lines = work / f"{result.name}.jsonl"
    log = work / f"{result.name}.log"
    lines.unlink(missing_ok=True)
    command = [
        sys.executable,
        str(program),
        "step",
        result.name,
        "--work",
        str(work),
        "--seconds",
        str(limit),
    ]
    result.status = "running"
    start = time.monotonic()
    with log.open("wb") as output:
        # A session of its own: what a step starts ends with it.
        process = subprocess.Popen(  # noqa: S603 - this interpreter and a script of ours
            command,
            stdout=output,
            stderr=output,
            env=os.environ | OFFLINE,
            start_new_session=True,
        )
        try:
            stopped = _watch(process, result, lines, start + limit, report, out)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    result.seconds = time.monotonic() - start
    ending = _read(result, lines)
    written = log_lines(log)
    if ending is not None:
        result.status, result.reason = ending["status"], ending["reason"]
    elif stopped:
        result.status = "stopped"
        result.reason = f"its time limit of {limit:.0f} s was over"
    else:
        last = written[-1] if written else "it wrote nothing"
        result.status = "failed"
        result.reason = f"its process ended with code {code}: {last}"
    if result.status in ("failed", "stopped"):
        result.log = written[-LOG_LINES:]


def _watch(
    process: subprocess.Popen[bytes],
    result: StepResult,
    lines: Path,
    end: float,
    report: Sequence[StepResult],
    out: Path,
) -> bool:
    """Wait for a step and put its results into the report as they come; returns whether its time ran out."""
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return True
        try:
            process.wait(min(LOOK_SECONDS, left))
        except subprocess.TimeoutExpired:
            known = len(result.results)
            _read(result, lines)
            if len(result.results) > known:
                write_report(report, out)
            continue
        return False


def _read(result: StepResult, lines: Path) -> dict[str, Any] | None:
    """Read the results of a step so far; returns how it ended, None where it has not said so."""
    if not lines.exists():
        return None
    records = []
    for line in lines.read_text(encoding="utf-8").splitlines():
        # the last line of a process that was killed may be torn
        with suppress(ValueError):
            records.append(json.loads(line))
    ending = next((record for record in records if "status" in record), None)
    result.results = [record for record in records if "status" not in record]
    return ending


def log_lines(log: Path) -> list[str]:
    """Return the lines of a log that say something, without the results among them; the end of long ones."""
    lines = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        text = printable(line.strip()[-300:])
        if text and not text.startswith("{"):
            lines.append(text)
    return lines


def write_report(report: Sequence[StepResult], out: Path) -> None:
    """Replace `gpu.json` and `gpu.md`."""
    write_json(
        out / "gpu.json", {"format": 1, "steps": [asdict(result) for result in report]}
    )
    write_text(out / "gpu.md", as_markdown(report))


def as_markdown(report: Sequence[StepResult]) -> str:
    """Return the report as a page: how each step ended, and a table of each that has results."""
    endings = []
    for result in report:
        limit = "" if result.limit is None else f"{result.limit:.0f}"
        endings.append(
            [
                result.name,
                result.status,
                f"{result.seconds:.0f}",
                limit,
                escape(result.reason),
            ]
        )
    parts = [
        "# Benchmark\n",
        compact(("step", "status", "seconds", "limit", "reason"), endings),
    ]
    for result in report:
        if result.results:
            parts += [f"## {result.title}\n", results_table(result.results)]
            parts += [f"- {note}\n" for note in result.notes]
    return "\n".join(parts)


def results_table(results: Sequence[dict[str, Any]]) -> str:
    """Return results as a table; a column for each name, in the order of their first appearance."""
    names = list(dict.fromkeys(name for result in results for name in result))

    def cells(result: dict[str, Any]) -> list[str]:
        return [_cell(result.get(name)) for name in names]

    return compact(names, map(cells, results))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value))
