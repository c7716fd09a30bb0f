"""`critic sample`, `critic label` and `critic agree`: from pairs to cases, and to the labels of teachers."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from critic.cases import GROUPS, Case
from critic.targets import PAPER, parse_targets
from critic.teacher.settings import (
    LabelConstraint,
    LabellingLimits,
    TeacherSettings,
)
from selfrag.interface import (
    CommandResult,
    Fields,
    FieldValues,
    Replaced,
    UserError,
    commit,
    count_of,
    read_jsonl,
    refuse_options,
    sha256,
    versions,
    write_json,
    write_jsonl,
    writing,
)
from selfrag.render.tables import markdown_section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from critic.agreement import Agreement, Labels
    from critic.pairs import Pair
    from critic.teacher.endpoint import TeacherConfig
    from critic.teacher.forms import TeacherForms
    from critic.teacher.run import Outcomes


def sample(
    pairs: list[Path],
    *,
    out: Annotated[Path, Replaced()],
    target: Annotated[
        list[str] | None, typer.Option(show_default="the paper's numbers")
    ] = None,
    seed: int = 0,
    index: Path | None = None,
    encoder: Annotated[str | None, typer.Option(show_default="where it was")] = None,
    passages: Annotated[int, typer.Option("-k", min=1)] = 5,
    sentences: str = "rules",
) -> CommandResult:
    """Draw cases for every reflection group from pairs, with a report of counts and examples beside them.

    Args:
        pairs: Files of pairs (JSONL).
        out: File of cases to write.
        target: Number of cases of a group, GROUP=N; repeatable.
        index: Index to search for passages; by default the pairs' own passages.
        encoder: Directory or hub name of the index's encoder.
        passages: Passages per search.
        sentences: 'rules', or the name of an installed spaCy model.
    """
    from critic.sampling import draw, report
    from retrieval import open_index
    from selfrag.interface import sentence_finder, show_markdown

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
    value = {"file": out, "counts": counts, "rules": drawn.by_rule()}

    def show() -> None:
        head = ("group", "rule", "cases")
        show_markdown(markdown_section("Cases", head, drawn.by_rule()))
        for group, lacking in drawn.short().items():
            line = f"{group}: {count_of(lacking, 'cases', form=',')} fewer than wanted; give more pairs or an index"
            typer.echo(line, err=True)
        report_name = f"{out.name}.report.md"
        typer.echo(
            f"{count_of(len(drawn.questions), 'cases', form=',')} in {out}, report in {report_name}"
        )

    return CommandResult(value, show)


def _read(files: list[Path]) -> list[Pair]:
    from critic.pairs import PairRecord, parse_pair
    from selfrag.common.validation import validate

    pairs: dict[str, Pair] = {}

    def add(record: dict[str, Any]) -> None:
        # refuses halves of characters, which no case can hold
        validate(PairRecord, record, others="ignore")
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

_TEACHER = (
    Fields(TeacherSettings, "Who labels", "url", "model", "api_key_env=--key-env"),
    Fields(
        TeacherSettings,
        "How it is asked",
        *("constraint", "temperature", "max_tokens", "seed"),
    ),
    Fields(
        TeacherSettings,
        "How fast",
        "max_concurrency=--concurrency",
        "requests_per_minute=--rpm",
        "read_timeout=--timeout",
        "retries",
        "longest_wait",
    ),
)
_COST = Fields(
    LabellingLimits,
    "What it may cost",
    "price_in",
    "price_out",
    "most_cost=--max-cost",
)


def _forms(prompts: Path | None, pending: Sequence[Case]) -> TeacherForms:
    """Return what is asked; a form that is missing is named before anything is paid."""
    from critic.teacher.forms import OWN, TeacherForms, form_name

    forms = OWN if prompts is None else TeacherForms.read(prompts)
    needed = {form_name(question) for question in pending}
    lacking = sorted(needed - forms.forms.keys())
    if lacking:
        raise UserError(
            f"{prompts} has no form {lacking[0]!r}, which some cases need; add it, or leave such cases out"
        )
    return forms


def label(
    questions: Path,
    *,
    ctx: typer.Context,
    out: Path,
    target: list[str] | None = None,
    gold: list[Path] | None = None,
    judge: Annotated[list[str] | None, typer.Option("--load-judge")] = None,
    name: Annotated[str | None, typer.Option(show_default="the model")] = None,
    teacher: Annotated[FieldValues, *_TEACHER],
    prompts: Path | None = None,
    cost: Annotated[FieldValues, _COST],
    dry_run: bool = False,
) -> CommandResult:
    """Label cases by an endpoint or by gold annotations. Stopped or killed, the same command continues.

    Args:
        questions: Cases of `critic sample`, or labelled cases to label again.
        target: Number of labelled rows to reach, GROUP=N or GROUP/LABEL=N; repeatable.
        dry_run: Print the estimate and stop.

    Who labels:
        gold: Labelled file to use as the teacher; repeatable.
        judge: Judge to use as the teacher for its group, such as nli:MODEL or critic:DIR; repeatable.
        name: Name of the teacher in `label_source`.

    How it is asked:
        prompts: Instructions and demonstrations (TOML) in place of ours; replies may explain their label.
    """
    from critic.case_files import read_questions
    from critic.judging import Critic
    from critic.teacher.endpoint import EndpointTeacher, forecast
    from critic.teacher.run import GoldTeacher, JudgeTeacher, Teacher, label_questions
    from selfrag.intrinsics.named import open_judge

    limits = LabellingLimits(parse_targets(target or ()), **cost)
    _check_teacher(ctx, [gold, judge, teacher.get("url")])
    pending = list(read_questions(questions))
    if not pending:
        raise UserError(f"{questions} holds no questions")
    labeller: Teacher
    if gold:
        labeller = GoldTeacher(gold, name or "gold")
    elif judge:
        labeller = JudgeTeacher(Critic({}).replaced(map(open_judge, judge)), name)
    else:
        labeller = EndpointTeacher(_config(teacher, _forms(prompts, pending)), name)
    plans: list[CommandResult] = []

    def before(questions: list[Case]) -> None:
        """Print the estimate for the questions still to be asked, and end what must not continue."""
        line = f"{count_of(len(questions), 'questions', form=',')} to look up; nothing to pay"
        plan = CommandResult({"questions": len(questions)}, line)
        most = 0.0
        if isinstance(labeller, EndpointTeacher):
            expected = forecast(questions, labeller.config, limits)
            plan = CommandResult(expected, str(expected))
            most = expected.most_cost or 0.0
        if dry_run:
            plans.append(plan)
            raise typer.Exit
        if isinstance(labeller, EndpointTeacher):
            typer.echo(plan.shown, err=True)
        if limits.most_cost is not None and most > limits.most_cost:
            raise UserError(
                f"this may cost {most:,.2f}, above --max-cost {limits.most_cost:,.2f};"
                " raise it, lower --max-tokens, or give fewer questions"
            )

    data = {"name": questions.name, "sha256": sha256(questions)}
    manifest = {
        "commit": commit(),
        "versions": versions(("selfrag", "httpx")),
        "questions": data,
        "url": teacher.get("url"),
    }
    try:
        if dry_run and not (out / "journal.jsonl").exists():
            before(pending)
        outcomes = label_questions(
            pending, labeller, out, limits=limits, manifest=manifest, before=before
        )
    except typer.Exit:
        return plans[0]
    return _result(outcomes, out)


def _check_teacher(ctx: typer.Context, teachers: Sequence[object]) -> None:
    """Raise UserError unless one teacher is named, with no option of another kind; the endpoint is the last."""
    if list(map(bool, teachers)).count(True) != 1:
        raise UserError(
            "no teacher, or two: give either --url with --model, --gold FILE or --load-judge NAME"
        )
    if not teachers[-1]:
        options = [option for fields in _TEACHER for option in fields.names()]
        refuse_options(ctx, [*options, "--prompts"], "for a teacher at --url")


def _config(teacher: FieldValues, forms: TeacherForms) -> TeacherConfig:
    """Return the settings of an endpoint; forms of a file may set what the options leave open."""
    from critic.teacher.endpoint import TeacherConfig

    settings: dict[str, Any] = {
        "model": "",
        "temperature": forms.temperature or 0.0,
        **teacher,
    }
    if forms.verbatim and settings.get("constraint", "auto") == "auto":
        settings["constraint"] = LabelConstraint.FREE  # a reply may explain its label
    return TeacherConfig(**settings, forms=forms)


def _result(outcomes: Outcomes, out: Path) -> CommandResult:
    """Return what came of a run; its exit code says whether questions are left without an answer."""
    from critic.targets import counted
    from selfrag.interface import show_markdown

    rows = counted((row.group, row.label) for row in outcomes.rows)
    labelled = out / "labelled.jsonl"

    def show() -> None:
        head = ("group", "label", "rows")
        show_markdown(markdown_section("Labels", head, rows))
        show_markdown(markdown_section("Run", ("", ""), outcomes.totals()))
        for name, lacking in outcomes.missing.items():
            line = f"target {name}: {count_of(lacking, 'rows', form=',')} lacking; give more questions"
            typer.echo(line, err=True)
        typer.echo(f"rows in {labelled}, report in {out / 'report.md'}")
        if outcomes.failed:
            line = (
                f"{count_of(len(outcomes.failed), 'questions', 'have', form=',')} no answer; run"
                f" the same again to ask them"
            )
            typer.echo(line, err=True)

    value = {"file": labelled, "counts": outcomes.counts(), "labels": rows}
    return CommandResult(value, show, INCOMPLETE if outcomes.failed else 0)


def agree(
    teachers: list[str],
    *,
    out: Annotated[Path | None, Replaced()] = None,
    seed: int = 0,
) -> CommandResult:
    """Compare teachers on the cases that they share by id: agreement, Cohen's kappa and confusion by group.

    Args:
        teachers: Two or more labelled files or run folders; NAME=PATH gives a name.
        out: Write all figures to this JSON file.
        seed: Seed of the intervals.
    """
    from critic.agreement import HUMAN, agreements
    from selfrag.evaluation.intervals import bracketed
    from selfrag.interface import show_markdown

    labels = _labels(teachers)
    compared = agreements(labels, seed=seed)
    if not any(pair.agreement.n for pair in compared):
        raise UserError(
            "these teachers share no case of any group; label the same file of cases with each of them"
        )
    value = {"seed": seed, "agreements": [pair.as_dict() for pair in compared]}
    if out is not None:
        write_json(out, value)
    header = ("group", "cases", "agreement", "kappa", "weighted kappa", "paper")
    shown = partial(bracketed, scale=1, digits=2)

    def show() -> None:
        for names, groups in groupby(compared, lambda pair: (pair.first, pair.second)):
            of_pair = list(groups)
            rows = []
            for pair in of_pair:
                figures = map(shown, (pair.agreement, pair.kappa, pair.weighted))
                rows.append((pair.group, pair.agreement.n, *figures, HUMAN[pair.group]))
            title = f"{' and '.join(names)}, with 95% intervals"
            show_markdown(markdown_section(title, header, rows))
            for pair in of_pair:
                show_markdown(_confusion(pair))
        typer.echo("paper: agreement of GPT-4 with the authors, 20 cases a group")

    return CommandResult(value, show)


def _confusion(pair: Agreement) -> str:

    names = GROUPS[pair.group].names
    title = (
        f"{pair.group}: {pair.first} (rows, {count_of(pair.only_first, 'cases')} of its own)"
        f" against {pair.second} (columns, {pair.only_second})"
    )
    return markdown_section(
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
        files = [path]
        if path.is_dir():
            files = [path / "labelled.jsonl", path / "surplus.jsonl"]
        for row in chain.from_iterable(map(read_labelled, files)):
            labels[name].setdefault(row.group, {})[row.id] = row.label
    if len(labels) < 2:
        raise UserError("one teacher agrees with itself; give two or more")
    return labels


def split(
    labelled: Path,
    *,
    out: Annotated[Path, Replaced(("train.jsonl", "dev.jsonl", "test.jsonl"))],
    dev: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
) -> CommandResult:
    """Split labelled rows into training, development and test rows; rows of one instruction stay together.

    Args:
        labelled: Labelled file (JSONL), or folder of critic label.
        out: Folder for train.jsonl, dev.jsonl and test.jsonl.
        dev: Share of the rows for development.
        test: Share of the rows for the test.
        seed: Seed of the draw.
    """
    from critic.case_files import read_labelled
    from selfrag.interface import check_float, show_markdown
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
    parts: dict[str, list[Case]] = {"train": rows, "dev": [], "test": []}
    for name, share in (("test", test), ("dev", dev / (1 - test))):
        chosen = held_out([row.instruction for row in parts["train"]], share, seed)
        parts[name] = [row for i, row in enumerate(parts["train"]) if i in chosen]
        parts["train"] = [
            row for i, row in enumerate(parts["train"]) if i not in chosen
        ]
    counts = {}
    for name, part in parts.items():
        write_jsonl(out / f"{name}.jsonl", [row.as_dict() for row in part])
        counts[name] = Counter(row.group for row in part)
    numbers = [[count[group] for count in counts.values()] for group in GROUPS]
    table = [(group, *row) for group, row in zip(GROUPS, numbers, strict=True)]
    shown = markdown_section("Rows", ("group", *parts), table)
    return CommandResult({"folder": out, "rows": counts}, lambda: show_markdown(shown))
