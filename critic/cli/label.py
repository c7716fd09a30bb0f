"""`critic label`: questions in, labels of a teacher out. Declares options; asks and prints nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from retrieval.errors import UserError

WHO, HOW, PACE, COST = "Who labels", "How it is asked", "How fast", "What it may cost"


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
    from critic.cli.labelling import estimating, manifest, prices, show
    from critic.targets import Targets
    from critic.teacher.base import Teacher
    from critic.teacher.config import Api, Constraint, EndpointConfig
    from critic.teacher.endpoint import EndpointTeacher
    from critic.teacher.gold import GoldTeacher
    from critic.teacher.questions import Question, read_questions
    from critic.teacher.run import Limits, label_questions

    paid = prices(price_in, price_out, max_cost)
    limits = Limits(Targets.parse(target or ()), paid, max_cost)
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
    asked: list[Question] = list(read_questions(questions))
    if not asked:
        raise UserError(f"{questions} holds no questions")

    def before(pending: list[Question]) -> None:
        if isinstance(teacher, EndpointTeacher):
            estimating(teacher.config, paid, max_cost, tokenizer, dry_run=dry_run)(pending)
        elif dry_run:
            typer.echo(f"{len(pending):,} questions to look up; nothing to pay", err=True)
            raise typer.Exit(0)

    if dry_run and not (out / "journal.jsonl").exists():
        return before(asked)

    from tqdm import tqdm

    with tqdm(total=len(asked), unit="case", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.update(done - bar.n)

        outcomes = label_questions(
            asked, teacher, out, limits=limits, manifest=manifest(questions, url), before=before, progress=progress
        )
    return show(outcomes, out)
