"""A labelling run: questions in, a directory with the critic's data out; stopped or killed, it continues where it was.

The directory holds `journal.jsonl`: every reply, in the order of arrival. At the end it also holds `labelled.jsonl`
(the rows that fill the targets, in the order of the questions), `surplus.jsonl`, `aside.jsonl`, `report.md` and
`manifest.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from critic.case_files import read_labelled
from critic.cases import GROUPS, Case, digest
from critic.judging import Critic
from critic.targets import Filling, counted
from critic.teacher.settings import LabellingLimits, TeacherError
from selfrag.common.atomic import locked_directory
from selfrag.common.runs import RunLog
from selfrag.interface import (
    Judgment,
    Progress,
    UserError,
    count_of,
    sha256,
    validate,
    write_json,
    write_jsonl,
    write_text,
    writing,
)
from selfrag.render.tables import markdown_table, quoted


class LabelOutcome(StrEnum):
    """What came of asking."""

    LABELLED = "labelled"  # a label of the case's set
    ASIDE = "aside"  # an answer that is no label: counted, kept with its raw text, never turned into a label
    FAILED = "failed"  # no answer, after all repetitions; asked again by the next run


@dataclass(frozen=True, slots=True)
class TeacherReply:
    """What a teacher said about one case. The texts of an endpoint in it are untrusted."""

    outcome: LabelOutcome
    # a label name of the case's group, where the outcome is `LABELLED`
    label: str | None = None
    raw: str = ""  # the answer as it came, cut to a bounded length
    reason: str = ""  # why there is no label, in one line
    source: str = ""  # who labelled; becomes `label_source` of the row
    constraint: str = ""  # how the answer was held to the label set, if at all
    requests: int = 0  # sent for it, repetitions included
    prompt_tokens: int = 0  # as the endpoint counts them, or an estimate
    completion_tokens: int = 0
    # over the label set in its order, where all labels were scored
    distribution: tuple[float, ...] | None = None
    # probability mass on the label set, where labels were scored
    coverage: float | None = None


class Teacher(Protocol):
    """Anything that labels cases.

    Example:
        >>> class Lenient:
        ...     name = "lenient"
        ...     def identity(self):
        ...         return {"teacher": self.name}
        ...     def label(self, cases):
        ...         for position, case in enumerate(cases):
        ...             yield position, TeacherReply(LabelOutcome.LABELLED, "Relevant")
        >>> teacher: Teacher = Lenient()
        >>> [reply.label for _, reply in teacher.label([Case.of("IsRel", "Who?")])]
        ['Relevant']
    """

    @property
    def name(self) -> str:
        """Return what reports and `label_source` call it."""

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides its labels, as plain values; a resumed run must have the same. Holds no secret."""

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, TeacherReply]]:
        """Yield one reply a case, with its position, in the order of arrival; raise TeacherError where none can come.

        Cases are consumed as slots get free, so that a caller can decide late what is asked next.
        """


class GoldTeacher:
    """Labels a case by the annotated rows of files that judge the very same texts; `label_source` stays the row's."""

    def __init__(self, files: Sequence[str | Path], name: str = "gold") -> None:
        self.name = name
        self._files = [Path(file) for file in files]
        self._rows: dict[str, list[Case]] = {}
        for file in self._files:
            for row in read_labelled(file, skip_unlabelled=True):
                self._rows.setdefault(digest(row), []).append(row)

    def identity(self) -> Mapping[str, Any]:
        """Return the content of the files."""
        return {"teacher": self.name, "gold": [sha256(file) for file in self._files]}

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, TeacherReply]]:
        """Yield one reply a case, in order; a case without a row, or with rows that disagree, is set aside."""
        for position, case in enumerate(cases):
            rows = self._rows.get(digest(case), [])
            labels = sorted({row.label for row in rows})
            reply = TeacherReply(
                LabelOutcome.ASIDE,
                raw="; ".join(labels),
                reason="the gold rows disagree" if labels else "no gold row",
                source=self.name,
            )
            if len(labels) == 1:
                source = rows[0].label_source or self.name
                reply = replace(
                    reply,
                    outcome=LabelOutcome.LABELLED,
                    label=labels[0],
                    reason="",
                    source=source,
                )
            yield position, reply


class JudgeTeacher:
    """Labels cases by judges, each of its own reflection group; cases of other groups are set aside."""

    def __init__(self, critic: Critic, name: str | None = None) -> None:
        """Label by the judges of a critic; `name` is by default theirs."""
        self.critic = critic
        self.name = name or ", ".join(judge.name for judge in critic.judges.values())

    def identity(self) -> Mapping[str, Any]:
        """Return what decides the judgments of each group."""
        judges = {
            group: dict(judge.identity()) for group, judge in self.critic.judges.items()
        }
        return {"teacher": self.name, "judges": judges}

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, TeacherReply]]:
        """Yield one reply a case, in order; a case that no judge decides is set aside."""
        remaining, position = iter(cases), 0
        while batch := list(islice(remaining, JUDGED_AT_ONCE)):
            for case, judgment in zip(batch, self.critic.judge(batch), strict=True):
                yield position, self._reply(case, judgment)
                position += 1

    def _reply(self, case: Case, judgment: Judgment | None) -> TeacherReply:
        if judgment is None:
            known = case.group in self.critic.judges
            reason = "the judge is undecided" if known else f"no judge of {case.group}"
            return TeacherReply(LabelOutcome.ASIDE, reason=reason, source=self.name)
        return TeacherReply(
            LabelOutcome.LABELLED,
            judgment.label,
            judgment.label,
            source=self.name,
            distribution=judgment.distribution,
            coverage=judgment.coverage,
        )


PATIENCE = 20
"""Questions in a row without any answer, after which a run stops. Those that an earlier run could not get answered do
not count: they may never be, and a run must get past them."""

JUDGED_AT_ONCE = 64
"""Cases of one call of a judge."""

EXAMPLES = 2
"""Rows that a report shows of each group and label."""


class ReplyJournal:
    """Replies of one teacher on disk by question id; use it as a context manager, by one process at a time."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._replies: dict[str, tuple[str, TeacherReply]] = {}
        self.prompt_tokens = self.completion_tokens = self.requests = 0
        """Totals over all lines, those of failed attempts included."""
        self._file = RunLog(path, identity, self._take)

    def __enter__(self) -> ReplyJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()

    def reply(self, question: Case) -> TeacherReply | None:
        """Return the last reply to a question; refuse one to another case under the same id."""
        case, reply = self._replies.get(question.id, ("", None))
        if reply is not None and case != digest(question):
            raise UserError(
                f"{self._file.path}: {question.id!r} was answered for another case;"
                " choose another directory for new cases"
            )
        return reply

    def append(self, question: Case, reply: TeacherReply) -> None:
        """Add one reply."""
        record = {
            "id": question.id,
            "group": question.group,
            "case": digest(question),
        }
        record |= {name: getattr(reply, name) for name in TeacherReply.__slots__}
        self._file.append(record)
        self._count(question.id, record["case"], reply)

    def _take(self, record: Mapping[str, Any]) -> None:
        reply = validate(
            TeacherReply, {name: record[name] for name in TeacherReply.__slots__}
        )
        if (reply.outcome is LabelOutcome.LABELLED) != (reply.label is not None):
            raise ValueError("outcome and label contradict each other")
        if reply.label is not None and reply.label not in GROUPS[record["group"]].names:
            raise ValueError(f"{reply.label!r} is no label of {record['group']}")
        self._count(str(record["id"]), str(record["case"]), reply)

    def _count(self, key: str, case: str, reply: TeacherReply) -> None:
        self._replies[key] = (case, reply)
        self.requests += reply.requests
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How a run ended; requests, tokens and cost are over all runs of the directory."""

    rows: list[Case]  # that fill the targets, in the order of the questions
    surplus: list[Case]  # labelled rows beyond the targets
    # questions with an answer that is no label
    aside: list[tuple[Case, TeacherReply]]
    # questions without an answer; the next run asks them again
    failed: list[tuple[Case, TeacherReply]]
    not_asked: int  # questions that the targets or the cost limit left over
    missing: Mapping[str, int]  # target -> rows lacking
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None  # in the currency of the prices; None without prices

    def counts(self) -> dict[str, Any]:
        """Figures for a manifest."""
        lists = {
            name: len(getattr(self, name))
            for name in ("rows", "surplus", "aside", "failed")
        }
        return lists | {
            name: getattr(self, name) for name in self.__slots__ if name not in lists
        }

    def totals(self) -> list[tuple[str, object]]:
        """Return what came out, in figures with their names."""
        totals: list[tuple[str, object]] = [
            ("labelled", len(self.rows)),
            ("labelled beyond the targets", len(self.surplus)),
            ("set aside", len(self.aside)),
            ("no answer", len(self.failed)),
            ("not asked", self.not_asked),
            ("requests", self.requests),
            ("prompt tokens", self.prompt_tokens),
            ("completion tokens", self.completion_tokens),
        ]
        if self.cost is not None:
            totals.append(("cost", f"{self.cost:,.4f}"))
        return totals


NO_LIMITS = LabellingLimits()


def label_questions(
    questions: Sequence[Case],
    teacher: Teacher,
    out: Path,
    *,
    limits: LabellingLimits = NO_LIMITS,
    manifest: Mapping[str, Any] | None = None,
    before: Callable[[list[Case]], None] = lambda pending: None,
) -> Outcomes:
    """Label questions with distinct ids, in a fixed order; continues an interrupted run of the same teacher in `out`.

    `before` is called once with the questions that are still unanswered, before the first is asked, and may raise.
    `manifest` holds facts about the run to be written down with its counts. All replies are kept whatever ends it.
    """
    with (
        locked_directory(out),
        ReplyJournal(out / "journal.jsonl", teacher.identity()) as journal,
    ):
        replies = {
            question.id: reply
            for question in questions
            if (reply := journal.reply(question)) is not None
        }
        _ask(questions, teacher, journal, replies, limits, before)
        outcomes = _outcomes(questions, replies, journal, limits)
        _publish(
            out,
            outcomes,
            {**(manifest or {}), "identity": dict(teacher.identity())},
            limits,
        )
    return outcomes


def _ask(
    questions: Sequence[Case],
    teacher: Teacher,
    journal: ReplyJournal,
    replies: dict[str, TeacherReply],
    limits: LabellingLimits,
    before: Callable[[list[Case]], None],
) -> None:
    """Ask what is unanswered and still wanted; every reply is on disk before the next one is looked at.

    Whether a question is wanted is decided by the labels of questions before it alone. So a run that was killed while
    early ones were under way asks them again, and ends with the same rows.
    """
    filling = Filling(limits.targets)
    known = {
        key: reply
        for key, reply in replies.items()
        if reply.outcome is not LabelOutcome.FAILED
    }
    answered, in_vain = len(known), 0
    sent: list[Case] = []
    before([question for question in questions if question.id not in known])

    def pending() -> Iterator[Case]:
        for question in questions:
            if (reply := known.get(question.id)) is not None:
                if reply.label is not None:
                    filling.add(question.group, reply.label)
                continue
            if not filling.open(question.group):
                continue
            spent = limits.cost(journal.prompt_tokens, journal.completion_tokens)
            if limits.most_cost is not None and (spent or 0.0) >= limits.most_cost:
                return
            sent.append(question)
            yield question

    showing = Progress("labelling", "case", len(questions), answered)
    with showing as bar, closing(teacher.label(pending())) as arriving:
        for position, reply in arriving:
            question = sent[position]
            failed = reply.outcome is LabelOutcome.FAILED
            # what failed in an earlier run says nothing about this one
            if not (failed and question.id in replies):
                in_vain = in_vain + 1 if failed else 0
            journal.append(question, reply)
            replies[question.id] = reply
            if in_vain >= PATIENCE:
                raise TeacherError(
                    f"{teacher.name} gave no answer {count_of(in_vain, 'times')} in a row (the last"
                    f" time: {reply.reason});"
                    f" {count_of(answered, 'answers', 'are')} kept, run the same again to continue"
                )
            answered += not failed
            if reply.label is not None:
                filling.add(question.group, reply.label)
            bar.advance(not failed)


def _outcomes(
    questions: Sequence[Case],
    replies: Mapping[str, TeacherReply],
    journal: ReplyJournal,
    limits: LabellingLimits,
) -> Outcomes:
    filling = Filling(limits.targets)
    rows: list[Case] = []
    surplus: list[Case] = []
    unlabelled: dict[LabelOutcome, list[tuple[Case, TeacherReply]]] = {
        outcome: [] for outcome in LabelOutcome
    }
    not_asked = 0
    for question in questions:
        reply = replies.get(question.id)
        if reply is None:
            not_asked += 1
        elif reply.label is None:
            unlabelled[reply.outcome].append((question, reply))
        else:
            fills = filling.add(question.group, reply.label)
            row = replace(question, label=reply.label, label_source=reply.source)
            (rows if fills else surplus).append(row)
    return Outcomes(
        rows,
        surplus,
        unlabelled[LabelOutcome.ASIDE],
        unlabelled[LabelOutcome.FAILED],
        not_asked,
        filling.missing(),
        journal.requests,
        journal.prompt_tokens,
        journal.completion_tokens,
        limits.cost(journal.prompt_tokens, journal.completion_tokens),
    )


def _publish(
    out: Path, outcomes: Outcomes, manifest: Mapping[str, Any], limits: LabellingLimits
) -> None:
    with writing(out):
        write_jsonl(out / "labelled.jsonl", (row.as_dict() for row in outcomes.rows))
        write_jsonl(out / "surplus.jsonl", (row.as_dict() for row in outcomes.surplus))
        write_jsonl(
            out / "aside.jsonl",
            (
                {**question.as_dict(), "reason": r.reason, "raw": r.raw}
                for question, r in outcomes.aside
            ),
        )
        write_text(out / "report.md", report(outcomes))
    settings = {"targets": dict(limits.targets), "most_cost": limits.most_cost}
    write_json(
        out / "manifest.json", {**manifest, **settings, "counts": outcomes.counts()}
    )


def report(outcomes: Outcomes) -> str:
    """Return a run as Markdown: counts by group, label and data set, examples, and what was set aside."""
    rows = outcomes.rows
    parts = [
        "# Labels of a teacher\n",
        markdown_table(("", "rows"), outcomes.totals()),
        "## Rows by group and label\n",
        markdown_table(
            ("group", "label", "rows"),
            counted((row.group, row.label) for row in rows),
        ),
        "## Rows by group, label, data set and rule\n",
        markdown_table(
            ("group", "label", "data set", "rule", "rows"),
            counted((row.group, row.label, row.dataset, row.rule) for row in rows),
        ),
    ]
    if outcomes.missing:
        parts += [
            "## Targets not reached\n",
            markdown_table(("target", "lacking"), list(outcomes.missing.items())),
        ]
    for title, kept in (
        ("Set aside: answers that are no label", outcomes.aside),
        ("No answer", outcomes.failed),
    ):
        if kept:
            reasons = counted(
                (question.group, reply.reason) for question, reply in kept
            )
            parts += [
                f"## {title}\n",
                markdown_table(("group", "reason", "questions"), reasons),
            ]
            parts += [
                quoted(f"{reply.reason}: {reply.raw!r}") for _, reply in kept[:EXAMPLES]
            ]
    parts.append("## Examples\n")
    for group, labels in sorted(GROUPS.items()):
        for label in labels.names:
            cases = [row for row in rows if (row.group, row.label) == (group, label)]
            if cases:
                parts += [
                    f"### {group}: {label}\n",
                    *(quoted(case.shown()) for case in cases[:EXAMPLES]),
                ]
    return "\n".join(parts)
