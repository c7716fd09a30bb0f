"""`selfrag doctor`: what is installed, which engine answers, whether a model can be used, what to do about the rest.

Prints findings; what is looked at lives in `selfrag.cli.checks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from selfrag.cli.checks.finding import Finding


def doctor(
    model: Annotated[str, typer.Argument(help="demo, a folder with a checkpoint, or a name on the hub")] = "demo",
    *,
    start: Annotated[bool, typer.Option("--start", help="also load MODEL and generate one token")] = False,
) -> None:
    """Say what is installed, which engine will be used, and whether MODEL can be; the exit code is 1 if not."""
    from selfrag.cli.checks.engine import check_engine, check_start
    from selfrag.cli.checks.machine import check_machine
    from selfrag.cli.checks.model import check_model
    from selfrag.cli.checks.packages import check_packages
    from selfrag.cli.session import quiet

    quiet()
    broken = False
    sections = [
        ("packages", check_packages()),
        ("machine", check_machine()),
        ("engine", check_engine()),
        (f"model {model}", check_model(model)),
    ]
    if start:
        sections.append(("start", check_start(model)))
    for title, findings in sections:
        broken |= _show(title, findings)
    raise typer.Exit(int(broken))


def _show(title: str, findings: Iterable[Finding]) -> bool:
    """Print one section as its findings come in; True if something in it is broken."""
    from rich.console import Console
    from rich.text import Text

    from selfrag.cli.show import plain

    console, broken = Console(), False
    console.print(Text(title, "bold"))
    marks = {"ok": ("ok    ", "green"), "note": ("note  ", "yellow"), "broken": ("broken", "red")}
    for finding in findings:
        line = Text.assemble("  ", marks[finding.status], f"  {finding.subject}: ", plain(finding.detail))
        if finding.fix:
            line.append_text(plain(f"\n          -> {finding.fix}"))
        console.print(line, soft_wrap=True)  # never broken, so that a command can be copied
        broken |= finding.status == "broken"
    return broken
