"""What `critic label` prints and refuses: the estimate before the run, progress, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from retrieval.errors import UserError

if TYPE_CHECKING:
    from critic.teacher.config import EndpointConfig
    from critic.teacher.cost import Forecast, Prices
    from critic.teacher.questions import Question
    from critic.teacher.run import Outcomes

INCOMPLETE = 1
"""Exit code of a run that leaves questions without an answer."""


def prices(price_in: float | None, price_out: float | None, max_cost: float | None) -> Prices | None:
    """Prices as the options give them.

    Raises:
        UserError: one of two is missing, or a limit is given without prices.
    """
    from critic.teacher.cost import Prices

    if (price_in is None) != (price_out is None):
        raise UserError("one price is missing; give both --price-in and --price-out, per million tokens")
    if price_in is None or price_out is None:
        if max_cost is not None:
            raise UserError("--max-cost needs prices; give --price-in and --price-out, per million tokens")
        return None
    if max_cost is not None and not 0 <= max_cost < float("inf"):
        raise UserError(f"--max-cost {max_cost}; give a number of at least 0")
    return Prices(price_in, price_out)


def estimating(
    config: EndpointConfig, paid: Prices | None, most_cost: float | None, tokenizer: str | None, *, dry_run: bool
) -> Callable[[Sequence[Question]], None]:
    """A function that prints the estimate for the questions still to be asked, and ends what must not go on.

    It raises `typer.Exit` on a dry run, and `UserError` where the estimate is above `most_cost`.
    """
    from critic.teacher.cost import by_bytes, by_tokenizer, forecast

    count = by_tokenizer(tokenizer) if tokenizer else by_bytes

    def before(questions: Sequence[Question]) -> None:
        expected = forecast(questions, config, paid, count)
        typer.echo(_line(expected), err=True)
        if dry_run:
            raise typer.Exit(0)
        if most_cost is not None and (expected.most_cost or 0.0) > most_cost:
            raise UserError(
                f"this may cost {expected.most_cost:,.2f}, above --max-cost {most_cost:,.2f};"
                " raise it, lower --max-tokens, or give fewer questions"
            )

    return before


def _line(expected: Forecast) -> str:
    parts = [
        f"{expected.questions:,} questions to ask",
        f"about {expected.prompt_tokens:,} tokens to send",
        f"at most {expected.most_completion_tokens:,} to receive",
    ]
    if expected.most_cost is not None:
        parts.append(f"at most {expected.most_cost:,.2f} to pay")
    if expected.least_minutes is not None:
        parts.append(f"at least {expected.least_minutes:,.1f} minutes")
    return ", ".join(parts)


def manifest(questions: Path, url: str | None) -> dict[str, Any]:
    """What is written down about a run beside its counts."""
    from selfrag.evaluation.provenance import commit, sha256, versions

    data = {"name": questions.name, "sha256": sha256(questions)}
    return {"commit": commit(), "versions": versions(("selfrag", "httpx")), "questions": data, "url": url}


def show(outcomes: Outcomes, out: Path) -> None:
    """Print what came of a run.

    Raises:
        typer.Exit: questions are left without an answer.
    """
    from rich.console import Console

    from critic.tables import counted, terminal
    from critic.teacher.report import totals

    console = Console()
    rows = counted((row.case.group, row.label) for row in outcomes.rows)
    console.print(terminal("Labels", ("group", "label", "rows"), rows))
    console.print(terminal("Run", ("", ""), totals(outcomes)))
    for name, lacking in outcomes.missing.items():
        typer.echo(f"target {name}: {lacking:,} rows lacking; give more questions", err=True)
    typer.echo(f"rows in {out / 'labelled.jsonl'}, report in {out / 'report.md'}")
    if outcomes.failed:
        typer.echo(f"{len(outcomes.failed):,} questions have no answer; run the same again to ask them", err=True)
        raise typer.Exit(INCOMPLETE)
