"""The report of a labelling run as Markdown: counts by group, label and data set, examples, and what was set aside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from critic.cases import Case, Labelled
from critic.tables import counted, markdown, quoted
from critic.teacher.forms import values

if TYPE_CHECKING:
    from critic.teacher.run import Outcomes

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
