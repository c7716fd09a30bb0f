"""`critic label`: questions in, labels of a teacher out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from retrieval.errors import UserError

if TYPE_CHECKING:
    from critic.cases import Question
    from critic.teacher.cost import Prices
    from critic.teacher.run import Outcomes

INCOMPLETE = 1
"""Exit code of a run that leaves questions without an answer."""

WHO, HOW, PACE, COST = "Who labels", "How it is asked", "How fast", "What it may cost"


def _prices(price_in: float | None, price_out: float | None, max_cost: float | None) -> Prices | None:
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


def label(
    questions: Annotated[Path, typer.Argument(help="Cases of `critic sample`, or labelled cases to label again.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory of the run; the same one resumes it.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Rows wanted, GROUP=N or GROUP/LABEL=N; repeatable. Asking stops when they are there."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="OpenAI-compatible base URL.", rich_help_panel=WHO)] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model there.", rich_help_panel=WHO)] = None,
    key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the API key.", rich_help_panel=WHO)
    ] = "OPENAI_API_KEY",
    gold: Annotated[
        list[Path] | None, typer.Option(help="Labelled file as the teacher; repeatable.", rich_help_panel=WHO)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name in `label_source`.", show_default="the model", rich_help_panel=WHO)
    ] = None,
    api: Annotated[
        Literal["chat", "completions"], typer.Option(help="completions for base models.", rich_help_panel=HOW)
    ] = "chat",
    constraint: Annotated[
        Literal["auto", "choice", "schema", "logprobs", "free"],
        typer.Option(help="How answers are held to the labels; logprobs scores them.", rich_help_panel=HOW),
    ] = "auto",
    temperature: Annotated[float, typer.Option(help="The paper asked at 1.", rich_help_panel=HOW)] = 0.0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", rich_help_panel=HOW)] = 200,
    seed: Annotated[int | None, typer.Option(help="Sent to the endpoint.", rich_help_panel=HOW)] = None,
    min_coverage: Annotated[
        float, typer.Option(help="Of logprobs: least probability on the labels together.", rich_help_panel=HOW)
    ] = 0.5,
    concurrency: Annotated[int, typer.Option(help="Requests under way at once.", rich_help_panel=PACE)] = 8,
    rpm: Annotated[float | None, typer.Option(help="Most requests a minute.", rich_help_panel=PACE)] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.", rich_help_panel=PACE)] = 120.0,
    retries: Annotated[int, typer.Option(help="Repetitions of a failed request.", rich_help_panel=PACE)] = 5,
    longest_wait: Annotated[
        float, typer.Option(help="Seconds; an endpoint that asks for more ends the run.", rich_help_panel=PACE)
    ] = 300.0,
    price_in: Annotated[
        float | None, typer.Option(help="Price of a million tokens sent.", rich_help_panel=COST)
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(help="Price of a million tokens received.", rich_help_panel=COST)
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Refuse a dearer run; ask nothing more once it is spent.", rich_help_panel=COST)
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Directory or hub name; counts tokens for the estimate.",
            show_default="4 bytes a token",
            rich_help_panel=COST,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimate and stop.", rich_help_panel=COST)
    ] = False,
) -> None:
    """Label cases by an endpoint or by gold annotations. Stopped or killed, the same command goes on."""
    from critic.cases import read_questions
    from critic.targets import Targets
    from critic.teacher.base import GoldTeacher, Teacher
    from critic.teacher.config import Api, Constraint, EndpointConfig
    from critic.teacher.cost import by_bytes, by_tokenizer, forecast
    from critic.teacher.endpoint import EndpointTeacher
    from critic.teacher.run import Limits, label_questions
    from selfrag.evaluation.provenance import commit, sha256, versions

    limits = Limits(Targets.parse(target or ()), _prices(price_in, price_out, max_cost), max_cost)
    if bool(gold) == (url is not None):
        raise UserError("no teacher, or two: give either --url with --model, or --gold FILE")
    teacher: Teacher
    if gold:
        teacher = GoldTeacher(gold, name or "gold")
    else:
        config = EndpointConfig(
            url or "",
            model or "",
            Api(api),
            Constraint(constraint),
            temperature,
            max_tokens,
            seed,
            min_coverage,
            key_env,
            concurrency=concurrency,
            requests_per_minute=rpm,
            timeout=timeout,
            retries=retries,
            longest_wait=longest_wait,
        )
        teacher = EndpointTeacher(config, name)
    asked = list(read_questions(questions))
    if not asked:
        raise UserError(f"{questions} holds no questions")
    count = by_tokenizer(tokenizer) if tokenizer and isinstance(teacher, EndpointTeacher) else by_bytes

    def before(pending: list[Question]) -> None:
        """Print the estimate for the questions still to be asked, and end what must not go on."""
        if isinstance(teacher, EndpointTeacher):
            expected = forecast(pending, teacher.config, limits.prices, count)
            typer.echo(str(expected), err=True)
        elif dry_run:
            typer.echo(f"{len(pending):,} questions to look up; nothing to pay", err=True)
        if dry_run:
            raise typer.Exit(0)
        if max_cost is not None and isinstance(teacher, EndpointTeacher) and (expected.most_cost or 0.0) > max_cost:
            raise UserError(
                f"this may cost {expected.most_cost:,.2f}, above --max-cost {max_cost:,.2f};"
                " raise it, lower --max-tokens, or give fewer questions"
            )

    if dry_run and not (out / "journal.jsonl").exists():
        return before(asked)
    data = {"name": questions.name, "sha256": sha256(questions)}
    manifest = {"commit": commit(), "versions": versions(("selfrag", "httpx")), "questions": data, "url": url}
    from tqdm import tqdm

    with tqdm(total=len(asked), unit="case", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(done - bar.n)

        outcomes = label_questions(
            asked, teacher, out, limits=limits, manifest=manifest, before=before, progress=progress
        )
    return _show(outcomes, out)


def _show(outcomes: Outcomes, out: Path) -> None:
    """Print what came of a run; its exit code says whether questions are left without an answer."""
    from rich.console import Console

    from critic.tables import counted, terminal

    console = Console()
    rows = counted((row.case.group, row.label) for row in outcomes.rows)
    console.print(terminal("Labels", ("group", "label", "rows"), rows))
    console.print(terminal("Run", ("", ""), outcomes.totals()))
    for name, lacking in outcomes.missing.items():
        typer.echo(f"target {name}: {lacking:,} rows lacking; give more questions", err=True)
    typer.echo(f"rows in {out / 'labelled.jsonl'}, report in {out / 'report.md'}")
    if outcomes.failed:
        typer.echo(f"{len(outcomes.failed):,} questions have no answer; run the same again to ask them", err=True)
        raise typer.Exit(INCOMPLETE)
