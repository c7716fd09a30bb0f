"""`critic sample`, `critic label` and `critic agree`: from pairs to cases, and to the labels of teachers."""

from __future__ import annotations

import functools
from collections import Counter
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selfrag.common.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from critic.agreement import Agreement, Labels
    from critic.cases import LabelledCase, UnlabelledCase
    from critic.pairs import Pair
    from critic.teacher.forms import TeacherForms
    from critic.teacher.run import Outcomes, Prices
    from selfrag.evaluation.intervals import Estimate


def sample(
    pairs: Annotated[list[Path], typer.Argument(help="Files of pairs (JSONL).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of cases to write.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Number of cases of a group, GROUP=N; repeatable.",
            show_default="the paper's numbers",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    index: Annotated[
        Path | None,
        typer.Option(
            help="Index to search for passages; by default the pairs' own passages."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Directory or hub name of the index's encoder.",
            show_default="where it was",
        ),
    ] = None,
    passages: Annotated[
        int, typer.Option("-k", help="Passages per search.", min=1)
    ] = 5,
    sentences: Annotated[
        str, typer.Option(help="'rules', or the name of an installed spaCy model.")
    ] = "rules",
) -> None:
    """Draw cases for every reflection group from pairs, with a report of counts and examples beside them."""
    from rich.console import Console

    from critic.cases import GROUPS
    from critic.sampling import draw, report
    from critic.tables import terminal
    from critic.targets import PAPER, parse_targets
    from retrieval import open_index
    from retrieval.sentences import sentence_finder
    from selfrag.common.atomic import write_json, writing
    from selfrag.common.jsonl import write_jsonl
    from selfrag.common.provenance import commit, sha256

    targets = parse_targets(target) if target else PAPER
    if not targets.keys() <= GROUPS.keys():
        raise UserError(
            "a label is not known before a teacher gave it; give GROUP=N here, GROUP/LABEL=N to `critic label`"
        )
    if encoder is not None and index is None:
        raise UserError("--encoder is of an index; give --index DIR with it")
    retriever = None if index is None else open_index(index, encoder)
    drawn = draw(
        _read(pairs),
        targets,
        sentence_finder(sentences),
        seed=seed,
        retriever=retriever,
        passages=passages,
    )
    text = report(drawn)
    with writing(out):
        write_jsonl(out, (question.as_dict() for question in drawn.questions))
        out.with_name(f"{out.name}.report.md").write_text(text, encoding="utf-8")
    settings = {
        "seed": seed,
        "targets": targets,
        "passages": passages,
        "sentences": sentences,
    }
    searched = None if index is None else {index.name: sha256(index / "manifest.json")}
    data = {"pairs": {file.name: sha256(file) for file in pairs}, "index": searched}
    counts = {
        "cases": len(drawn.questions),
        "short": drawn.short(),
        "left_out": dict(drawn.left_out),
    }
    write_json(
        out.with_name(f"{out.name}.manifest.json"),
        {"commit": commit(), **settings, **data, "counts": counts},
    )
    Console().print(terminal("Cases", ("group", "rule", "cases"), drawn.by_rule()))
    for group, lacking in drawn.short().items():
        typer.echo(
            f"{group}: {lacking:,} cases fewer than wanted; give more pairs or an index",
            err=True,
        )
    typer.echo(
        f"{len(drawn.questions):,} cases in {out}, report in {out.name}.report.md"
    )


def _read(files: list[Path]) -> list[Pair]:
    from critic.pairs import PairRecord, parse_pair
    from selfrag.common.jsonl import read_jsonl
    from selfrag.common.validation import validate

    pairs: dict[str, Pair] = {}

    def add(record: dict[str, Any]) -> None:
        validate(
            PairRecord, record, others="ignore"
        )  # refuses halves of characters, which no case can hold
        pair = parse_pair(record)
        if pair.id in pairs:
            raise UserError(
                f"id {pair.id!r} occurs twice; make the ids of all files distinct"
            )
        pairs[pair.id] = pair

    for file in files:
        list(read_jsonl(file, add))
    return list(pairs.values())


INCOMPLETE = 1
"""Exit code of a run that leaves questions without an answer."""

_WHO = functools.partial(typer.Option, rich_help_panel="Who labels")
_HOW = functools.partial(typer.Option, rich_help_panel="How it is asked")
_PACE = functools.partial(typer.Option, rich_help_panel="How fast")
_COST = functools.partial(typer.Option, rich_help_panel="What it may cost")


def _prices(
    price_in: float | None, price_out: float | None, max_cost: float | None
) -> Prices | None:
    from critic.teacher.run import Prices

    if (price_in is None) != (price_out is None):
        raise UserError(
            "one price is missing; give both --price-in and --price-out, per million tokens"
        )
    if price_in is None or price_out is None:
        if max_cost is not None:
            raise UserError(
                "--max-cost needs prices; give --price-in and --price-out, per million tokens"
            )
        return None
    if max_cost is not None and not 0 <= max_cost < float("inf"):
        raise UserError(f"--max-cost {max_cost}; give a number of at least 0")
    return Prices(price_in, price_out)


def _forms(prompts: Path | None, pending: Sequence[UnlabelledCase]) -> TeacherForms:
    """Return what is asked; a form that is missing is named before anything is paid."""
    from critic.teacher.forms import OWN, TeacherForms, form_name

    forms = OWN if prompts is None else TeacherForms.read(prompts)
    if lacking := sorted(
        {form_name(question.case) for question in pending} - forms.forms.keys()
    ):
        raise UserError(
            f"{prompts} has no form {lacking[0]!r}, which some cases need; add it, or leave such cases out"
        )
    return forms


def label(
    questions: Annotated[
        Path,
        typer.Argument(
            help="Cases of `critic sample`, or labelled cases to label again."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder of the run; the same command continues it."
        ),
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="Number of labelled rows to reach, GROUP=N or GROUP/LABEL=N; repeatable."
        ),
    ] = None,
    url: Annotated[str | None, _WHO(help="OpenAI-compatible base URL.")] = None,
    model: Annotated[
        str | None, _WHO(help="Name of the model at the endpoint.")
    ] = None,
    key_env: Annotated[
        str, _WHO(help="Environment variable that holds the API key.")
    ] = "OPENAI_API_KEY",
    gold: Annotated[
        list[Path] | None, _WHO(help="Labelled file to use as the teacher; repeatable.")
    ] = None,
    judge: Annotated[
        list[str] | None,
        _WHO(
            help="Judge to use as the teacher for its group, such as nli:MODEL or critic:DIR; repeatable."
        ),
    ] = None,
    name: Annotated[
        str | None,
        _WHO(help="Name of the teacher in `label_source`.", show_default="the model"),
    ] = None,
    api: Annotated[
        Literal["chat", "completions"],
        _HOW(help="Route of the endpoint: chat, or completions for base models."),
    ] = "chat",
    constraint: Annotated[
        Literal["auto", "choice", "schema", "logprobs", "free"],
        _HOW(
            help="How replies are restricted to the labels; logprobs scores the labels."
        ),
    ] = "auto",
    prompts: Annotated[
        Path | None,
        _HOW(
            help="Instructions and demonstrations (TOML) in place of ours; replies may explain their label."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        _HOW(
            help="Sampling temperature; the paper's is 1.",
            show_default="that of --prompts, or 0",
        ),
    ] = None,
    max_tokens: Annotated[int, _HOW(help="Most new tokens of a reply.")] = 200,
    seed: Annotated[int | None, _HOW(help="Seed that is sent to the endpoint.")] = None,
    min_coverage: Annotated[
        float, _HOW(help="Least total probability of the labels, with logprobs.")
    ] = 0.5,
    concurrency: Annotated[
        int, _PACE(help="Most requests at once.", min=1, max=1024)
    ] = 8,
    rpm: Annotated[float | None, _PACE(help="Most requests a minute.")] = None,
    timeout: Annotated[float, _PACE(help="Seconds to wait for a reply.")] = 120.0,
    retries: Annotated[int, _PACE(help="Retries of a failed request.")] = 5,
    longest_wait: Annotated[
        float, _PACE(help="Seconds; a longer Retry-After ends the run.")
    ] = 300.0,
    price_in: Annotated[
        float | None, _COST(help="Price of a million prompt tokens.")
    ] = None,
    price_out: Annotated[
        float | None, _COST(help="Price of a million new tokens.")
    ] = None,
    max_cost: Annotated[
        float | None,
        _COST(
            help="Most money to spend: an estimate above it is refused, and requests stop when it is reached."
        ),
    ] = None,
    dry_run: Annotated[
        bool, _COST("--dry-run", help="Print the estimate and stop.")
    ] = False,
) -> None:
    """Label cases by an endpoint or by gold annotations. Stopped or killed, the same command continues."""
    from critic.case_files import read_questions
    from critic.judging import Critic
    from critic.targets import parse_targets
    from critic.teacher.endpoint import (
        Api,
        EndpointTeacher,
        LabelConstraint,
        TeacherConfig,
        forecast,
    )
    from critic.teacher.run import (
        GoldTeacher,
        JudgeTeacher,
        LabellingLimits,
        Teacher,
        label_questions,
    )
    from selfrag.common.provenance import commit, sha256, versions
    from selfrag.intrinsics.named import open_judge

    limits = LabellingLimits(
        parse_targets(target or ()), _prices(price_in, price_out, max_cost), max_cost
    )
    if [bool(gold), bool(judge), url is not None].count(True) != 1:
        raise UserError(
            "no teacher, or two: give either --url with --model, --gold FILE or --judge NAME"
        )
    pending = list(read_questions(questions))
    if not pending:
        raise UserError(f"{questions} holds no questions")
    teacher: Teacher
    if gold:
        teacher = GoldTeacher(gold, name or "gold")
    elif judge:
        critic = Critic({}).replaced(map(open_judge, judge))
        teacher = JudgeTeacher(critic, name)
    else:
        forms = _forms(prompts, pending)
        if forms.plain and constraint == "auto":
            constraint = "free"  # the reply may explain its label
        config = TeacherConfig(
            url or "",
            model or "",
            Api(api),
            LabelConstraint(constraint),
            forms.temperature or 0.0 if temperature is None else temperature,
            max_tokens,
            seed,
            min_coverage,
            api_key_env=key_env,
            max_concurrency=concurrency,
            requests_per_minute=rpm,
            read_timeout=timeout,
            retries=retries,
            longest_wait=longest_wait,
            forms=forms,
        )
        teacher = EndpointTeacher(config, name)

    def before(questions: list[UnlabelledCase]) -> None:
        """Print the estimate for the questions still to be asked, and end what must not continue."""
        if isinstance(teacher, EndpointTeacher):
            expected = forecast(questions, teacher.config, limits.prices)
            typer.echo(str(expected), err=True)
        elif dry_run:
            typer.echo(
                f"{len(questions):,} questions to look up; nothing to pay", err=True
            )
        if dry_run:
            raise typer.Exit(0)
        if (
            max_cost is not None
            and isinstance(teacher, EndpointTeacher)
            and (expected.most_cost or 0.0) > max_cost
        ):
            raise UserError(
                f"this may cost {expected.most_cost:,.2f}, above --max-cost {max_cost:,.2f};"
                " raise it, lower --max-tokens, or give fewer questions"
            )

    if dry_run and not (out / "journal.jsonl").exists():
        return before(pending)
    data = {"name": questions.name, "sha256": sha256(questions)}
    manifest = {
        "commit": commit(),
        "versions": versions(("selfrag", "httpx")),
        "questions": data,
        "url": url,
    }
    return _show(
        label_questions(
            pending, teacher, out, limits=limits, manifest=manifest, before=before
        ),
        out,
    )


def _show(outcomes: Outcomes, out: Path) -> None:
    """Print what came of a run; its exit code says whether questions are left without an answer."""
    from rich.console import Console

    from critic.tables import counted, terminal

    console = Console()
    rows = counted((row.case.group, row.label) for row in outcomes.rows)
    console.print(terminal("Labels", ("group", "label", "rows"), rows))
    console.print(terminal("Run", ("", ""), outcomes.totals()))
    for name, lacking in outcomes.missing.items():
        typer.echo(
            f"target {name}: {lacking:,} rows lacking; give more questions", err=True
        )
    typer.echo(f"rows in {out / 'labelled.jsonl'}, report in {out / 'report.md'}")
    if outcomes.failed:
        typer.echo(
            f"{len(outcomes.failed):,} questions have no answer; run the same again to ask them",
            err=True,
        )
        raise typer.Exit(INCOMPLETE)


def agree(
    teachers: Annotated[
        list[str],
        typer.Argument(
            help="Two or more labelled files or run folders; NAME=PATH gives a name."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write all figures to this JSON file."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the intervals.")] = 0,
) -> None:
    """Compare teachers on the cases that they share by id: agreement, Cohen's kappa, confusion, for every group."""
    from rich.console import Console

    from critic.agreement import HUMAN, agreements
    from critic.tables import terminal
    from selfrag.common.atomic import write_json

    labels = _labels(teachers)
    compared = agreements(labels, seed=seed)
    if not any(pair.agreement.n for pair in compared):
        raise UserError(
            "these teachers share no case of any group; label the same file of cases with each of them"
        )
    console = Console()
    header = ("group", "cases", "agreement", "kappa", "weighted kappa", "paper")
    for (first, second), groups in groupby(
        compared, lambda pair: (pair.first, pair.second)
    ):
        of_pair = list(groups)
        rows = []
        for pair in of_pair:
            figures = map(_interval, (pair.agreement, pair.kappa, pair.weighted))
            rows.append((pair.group, pair.agreement.n, *figures, HUMAN[pair.group]))
        console.print(
            terminal(f"{first} and {second}, with 95% intervals", header, rows)
        )
        for pair in of_pair:
            console.print(_confusion(pair))
    typer.echo("paper: agreement of GPT-4 with the authors, 20 cases a group")
    if out is not None:
        write_json(
            out, {"seed": seed, "agreements": [pair.as_dict() for pair in compared]}
        )


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value != estimate.value:
        return "-"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _confusion(pair: Agreement) -> Table:
    from critic.cases import GROUPS
    from critic.tables import terminal

    names = GROUPS[pair.group].names
    title = (
        f"{pair.group}: {pair.first} (rows, {pair.only_first} cases of its own)"
        f" against {pair.second} (columns, {pair.only_second})"
    )
    return terminal(
        title,
        ("", *names),
        [(name, *row) for name, row in zip(names, pair.confusion, strict=True)],
    )


def _labels(arguments: list[str]) -> Mapping[str, Labels]:
    from critic.case_files import read_labelled

    labels: dict[str, dict[str, dict[str, str]]] = {}
    for argument in arguments:
        path = Path(argument)
        name = path.name.removesuffix(".gz").removesuffix(".jsonl")
        if "=" in argument and not path.exists():
            name, _, place = argument.partition("=")
            path = Path(place)
        if name in labels:
            raise UserError(f"two teachers are called {name!r}; name them: NAME=PATH")
        labels[name] = {}
        files = (
            [path / "labelled.jsonl", path / "surplus.jsonl"]
            if path.is_dir()
            else [path]
        )
        for row in chain.from_iterable(map(read_labelled, files)):
            labels[name].setdefault(row.case.group, {})[row.id] = row.label
    if len(labels) < 2:
        raise UserError("one teacher agrees with itself; give two or more")
    return labels


def split(
    labelled: Annotated[
        Path, typer.Argument(help="Labelled file (JSONL), or folder of critic label.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for train.jsonl, dev.jsonl and test.jsonl."
        ),
    ],
    dev: Annotated[
        float, typer.Option(help="Share of the rows for development.")
    ] = 0.1,
    test: Annotated[float, typer.Option(help="Share of the rows for the test.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
) -> None:
    """Split labelled rows into training, development and test rows; rows of one instruction stay together."""
    from rich.console import Console

    from critic.case_files import read_labelled
    from critic.cases import GROUPS
    from critic.tables import terminal
    from selfrag.common.checks import check_float
    from selfrag.common.jsonl import write_jsonl
    from selfrag.training.run import held_out

    for name, share in (("dev", dev), ("test", test)):
        check_float(name, share, 0, 1, above=True)
    if dev + test >= 1:
        raise UserError(
            f"dev={dev:g} and test={test:g} leave no rows to train on; lower them"
        )
    rows = list(
        read_labelled(labelled / "labelled.jsonl" if labelled.is_dir() else labelled)
    )
    parts: dict[str, list[LabelledCase]] = {"train": rows, "dev": [], "test": []}
    for name, share in (("test", test), ("dev", dev / (1 - test))):
        chosen = held_out([row.case.instruction for row in parts["train"]], share, seed)
        parts[name] = [row for i, row in enumerate(parts["train"]) if i in chosen]
        parts["train"] = [
            row for i, row in enumerate(parts["train"]) if i not in chosen
        ]
    for name in parts:
        if (out / f"{name}.jsonl").exists():
            raise UserError(
                f"{out / f'{name}.jsonl'} is there already; give another folder"
            )
    counts = []
    for name, part in parts.items():
        write_jsonl(out / f"{name}.jsonl", [row.as_dict() for row in part])
        counts.append(Counter(row.case.group for row in part))
    table = [(group, *(count[group] for count in counts)) for group in GROUPS]
    Console().print(terminal("Rows", ("group", *parts), table))
