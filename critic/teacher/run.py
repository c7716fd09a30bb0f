"""A labelling run: questions in, a directory with the critic's data out; started again it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from critic.cases import GROUPS, Case, Labelled, Question, digest
from critic.tables import counted, markdown, quoted
from critic.targets import Filling, Targets, fill, missing
from critic.teacher.base import Outcome, Reply, Teacher, TeacherError
from critic.teacher.cost import Prices
from critic.teacher.prompts import values
from retrieval.atomic import write_json, writing
from retrieval.errors import UserError
from retrieval.lock import locked_directory
from selfrag.jsonl import write_jsonl
from selfrag.runlog import Header, RunLog

_KIND = Header("critic-replies/1", "replies", "a teacher", "choose another directory")


class Journal:
    """Replies on disk by question id; use it as a context manager, by one process at a time.

    Args:
        path: made if missing.
        identity: of the teacher; must be that of the file.

    Raises:
        UserError: the file is of another teacher, damaged, or cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._replies: dict[str, tuple[str, Reply]] = {}
        self.prompt_tokens = self.completion_tokens = self.requests = 0
        """Totals over all lines, those of failed attempts included."""
        self._file = RunLog(path, _KIND, identity, self._take)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()

    def reply(self, question: Question) -> Reply | None:
        """What is known about a question; the last reply where it was asked again.

        Raises:
            UserError: the reply is to another case under the same id.
        """
        found = self._replies.get(question.id)
        if found is None:
            return None
        if found[0] != digest(question.case):
            raise UserError(
                f"{self._file.path}: {question.id!r} was answered for another case;"
                " choose another directory for new cases"
            )
        return found[1]

    def append(self, question: Question, reply: Reply) -> None:
        """Add one reply.

        Raises:
            UserError: the disk is full, or the file cannot be written; the file ends with the last whole line.
        """
        record = {"id": question.id, "group": question.case.group, "case": digest(question.case)}
        self._file.append({**record, **_as_dict(reply)})
        self._count(question.id, digest(question.case), reply)

    def _take(self, record: Mapping[str, Any]) -> None:
        self._count(str(record["id"]), str(record["case"]), _parse(record))

    def _count(self, key: str, case: str, reply: Reply) -> None:
        self._replies[key] = (case, reply)
        self.requests += reply.requests
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


def _as_dict(reply: Reply) -> dict[str, Any]:
    return {name: getattr(reply, name) for name in Reply.__slots__}


def _parse(record: Mapping[str, Any]) -> Reply:
    fields = {name: record[name] for name in Reply.__slots__}
    scores = fields["distribution"]
    fields |= {"outcome": Outcome(fields["outcome"]), "distribution": None if scores is None else tuple(scores)}
    reply = Reply(**fields)
    if (reply.outcome is Outcome.LABELLED) != (reply.label is not None):
        raise ValueError("outcome and label contradict each other")
    if reply.label is not None and reply.label not in GROUPS[record["group"]].names:
        raise ValueError(f"{reply.label!r} is no label of {record['group']}")
    return reply


EXAMPLES = 2
"""Rows shown of each group and label."""


def report(outcomes: Outcomes) -> str:
    """The whole report."""
    rows = outcomes.rows
    parts = [
        "# Labels of a teacher\n",
        markdown(("", "rows"), totals(outcomes)),
        "## Rows by group and label\n",
        markdown(("group", "label", "rows"), counted((row.case.group, row.label) for row in rows)),
        "## Rows by group, label, data set and rule\n",
        markdown(
            ("group", "label", "data set", "rule", "rows"),
            counted((row.case.group, row.label, row.dataset, row.rule) for row in rows),
        ),
    ]
    if outcomes.missing:
        parts += ["## Targets not reached\n", markdown(("target", "lacking"), list(outcomes.missing.items()))]
    for title, kept in (("Set aside: answers that are no label", outcomes.aside), ("No answer", outcomes.failed)):
        if kept:
            reasons = counted((question.case.group, reply.reason) for question, reply in kept)
            parts += [f"## {title}\n", markdown(("group", "reason", "questions"), reasons)]
            parts += [quoted(f"{reply.reason}: {reply.raw!r}") for _, reply in kept[:EXAMPLES]]
    parts += ["## Examples\n", *_examples(rows)]
    return "\n".join(parts)


def totals(outcomes: Outcomes) -> list[tuple[str, object]]:
    """What came out, in figures with their names."""
    found: list[tuple[str, object]] = [
        ("labelled", len(outcomes.rows)),
        ("labelled beyond the targets", len(outcomes.surplus)),
        ("set aside", len(outcomes.aside)),
        ("no answer", len(outcomes.failed)),
        ("not asked", outcomes.not_asked),
        ("requests", outcomes.requests),
        ("prompt tokens", outcomes.prompt_tokens),
        ("completion tokens", outcomes.completion_tokens),
    ]
    return found if outcomes.cost is None else [*found, ("cost", f"{outcomes.cost:,.4f}")]


def shown(case: Case) -> str:
    """A case with the names of its fields, for people."""
    return "\n".join(f"{name}: {text}" for name, text in values(case).items() if text)


def _examples(rows: list[Labelled]) -> Iterator[str]:
    seen: dict[tuple[str, str], int] = {}
    for row in sorted(rows, key=lambda row: (row.case.group, row.case.labels.index(row.label))):
        key = (row.case.group, row.label)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 1:
            yield f"### {row.case.group}: {row.label}\n"
        if seen[key] <= EXAMPLES:
            yield quoted(shown(row.case))


PATIENCE = 20
"""Questions in a row without any answer, after which a run stops. Those that an earlier run could not get answered do
not count: they may never be, and a run must get past them."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How a run ended.

    Attributes:
        rows: labelled rows that fill the targets, in the order of the questions.
        surplus: labelled rows beyond the targets.
        aside: questions with an answer that is no label.
        failed: questions without an answer; the next run asks them again.
        not_asked: questions that the targets or the cost limit left over.
        missing: target -> rows lacking.
        requests: sent, over all runs of this directory.
        prompt_tokens: sent, likewise.
        completion_tokens: received, likewise.
        cost: in the currency of the prices; None without prices.
    """

    rows: list[Labelled]
    surplus: list[Labelled]
    aside: list[tuple[Question, Reply]]
    failed: list[tuple[Question, Reply]]
    not_asked: int
    missing: Mapping[str, int]
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    def counts(self) -> dict[str, Any]:
        """Figures for a manifest."""
        lists = {name: len(getattr(self, name)) for name in ("rows", "surplus", "aside", "failed")}
        names = ("not_asked", "missing", "requests", "prompt_tokens", "completion_tokens", "cost")
        return {**lists, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run stops asking.

    Attributes:
        targets: rows that are wanted; everything without any.
        prices: of tokens, if they cost anything.
        most_cost: spent by all runs of the directory together, after which nothing more is asked.
    """

    targets: Targets = field(default_factory=Targets)
    prices: Prices | None = None
    most_cost: float | None = None


def label_questions(
    questions: Sequence[Question],
    teacher: Teacher,
    out: Path,
    *,
    limits: Limits = Limits(),
    manifest: Mapping[str, Any] | None = None,
    before: Callable[[list[Question]], None] = lambda pending: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcomes:
    """Label questions.

    Args:
        questions: with distinct ids, in a fixed order.
        teacher: who labels.
        out: directory; may hold an interrupted run of the same teacher.
        limits: when to stop asking.
        manifest: facts about the run to be written down with its counts.
        before: called once with the questions that are still unanswered, before the first is asked; may raise.
        progress: called with questions answered and questions in all.

    Raises:
        TeacherError: the teacher cannot go on, or nothing was answered for long. All replies so far are kept.
        UserError: the directory is of another run or cannot be written, or another process works there.
    """
    with locked_directory(out), Journal(out / "journal.jsonl", teacher.identity()) as journal:
        replies = {question.id: reply for question in questions if (reply := journal.reply(question)) is not None}
        _ask(questions, teacher, journal, replies, limits, before, progress)
        outcomes = _outcomes(questions, replies, journal, limits)
        _publish(out, outcomes, {**(manifest or {}), "identity": dict(teacher.identity())}, limits)
    return outcomes


def _unanswered(reply: Reply | None) -> bool:
    return reply is None or reply.outcome is Outcome.FAILED


def _ask(
    questions: Sequence[Question],
    teacher: Teacher,
    journal: Journal,
    replies: dict[str, Reply],
    limits: Limits,
    before: Callable[[list[Question]], None],
    progress: Callable[[int, int], None],
) -> None:
    """Ask what is unanswered and still wanted; every reply is on disk before the next one is looked at.

    Whether a question is wanted is decided by the labels of questions before it alone. So a run that was killed while
    early ones were under way asks them again, and ends with the same rows.
    """
    filling = Filling(limits.targets)
    unanswered = [question for question in questions if _unanswered(replies.get(question.id))]
    answered = len(questions) - len(unanswered)
    before(unanswered)
    asked: list[Question] = []

    def wanted() -> Iterator[Case]:
        for question in questions:
            known = replies.get(question.id)
            if known is not None and not _unanswered(known):
                if known.label is not None:
                    filling.add(question.case.group, known.label)
                continue
            if not filling.open(question.case.group):
                continue
            if limits.most_cost is not None and (_cost(journal, limits) or 0.0) >= limits.most_cost:
                return
            asked.append(question)
            yield question.case

    in_vain = 0
    with closing(teacher.label(wanted())) as arriving:
        for position, reply in arriving:
            question = asked[position]
            failed = reply.outcome is Outcome.FAILED
            if not (failed and question.id in replies):  # what failed in an earlier run says nothing about this one
                in_vain = in_vain + 1 if failed else 0
            journal.append(question, reply)
            replies[question.id] = reply
            if in_vain >= PATIENCE:
                raise TeacherError(
                    f"{teacher.name} gave no answer {in_vain} times in a row (the last time: {reply.reason});"
                    f" {answered} answers are kept, run the same again to go on"
                )
            answered += not failed
            if reply.label is not None:
                filling.add(question.case.group, reply.label)
            progress(answered, len(questions))


def _outcomes(
    questions: Sequence[Question], replies: Mapping[str, Reply], journal: Journal, limits: Limits
) -> Outcomes:
    answered = [(question, replies[question.id]) for question in questions if question.id in replies]
    labelled = [
        (question.case.group, reply.label, question.answered(reply.label, reply.source))
        for question, reply in answered
        if reply.label is not None
    ]
    rows, surplus = fill(labelled, limits.targets)
    return Outcomes(
        rows,
        surplus,
        [(question, reply) for question, reply in answered if reply.outcome is Outcome.ASIDE],
        [(question, reply) for question, reply in answered if reply.outcome is Outcome.FAILED],
        len(questions) - len(answered),
        missing([(row.case.group, row.label) for row in rows], limits.targets),
        journal.requests,
        journal.prompt_tokens,
        journal.completion_tokens,
        _cost(journal, limits),
    )


def _cost(journal: Journal, limits: Limits) -> float | None:
    return limits.prices.cost(journal.prompt_tokens, journal.completion_tokens) if limits.prices else None


def _publish(out: Path, outcomes: Outcomes, manifest: Mapping[str, Any], limits: Limits) -> None:
    pass

    with writing(out):
        write_jsonl(out / "labelled.jsonl", (row.as_dict() for row in outcomes.rows))
        write_jsonl(out / "surplus.jsonl", (row.as_dict() for row in outcomes.surplus))
        write_jsonl(
            out / "aside.jsonl",
            ({**question.as_dict(), "reason": r.reason, "raw": r.raw} for question, r in outcomes.aside),
        )
        draft = out / ".report.md.partial"
        draft.write_text(report(outcomes), encoding="utf-8")
        draft.replace(out / "report.md")
    settings = {"targets": limits.targets.as_dict(), "most_cost": limits.most_cost}
    write_json(out / "manifest.json", {**manifest, **settings, "counts": outcomes.counts()})
