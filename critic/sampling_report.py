"""The report of a sample as Markdown: counts by group, rule and data set, what was short, and examples. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from critic.sampling import Sample
from critic.tables import counted, markdown, quoted
from critic.teacher.report import shown

EXAMPLES = 2
"""Cases shown of each rule."""


def by_rule(sample: Sample) -> list[tuple[object, ...]]:
    """(group, rule, cases)."""
    return counted((question.case.group, question.rule) for question in sample.questions)


def report(sample: Sample) -> str:
    """The whole report."""
    short = sample.short()
    groups = [(group, count, count - short.get(group, 0)) for group, count in sample.wanted.items()]
    sets = counted((q.case.group, q.rule, q.dataset) for q in sample.questions)
    parts = [
        "# Cases for a teacher\n",
        markdown(("group", "wanted", "drawn"), groups),
        "## Cases by rule\n",
        markdown(("group", "rule", "cases"), by_rule(sample)),
        "## Cases by rule and data set\n",
        markdown(("group", "rule", "data set", "cases"), sets),
        "## Pairs that offered no new case\n",
        markdown(("rule", "pairs"), sorted(sample.left_out.items())),
        "## Examples\n",
        *_examples(sample),
    ]
    return "\n".join(parts)


def _examples(sample: Sample) -> Iterator[str]:
    for group, rule, _ in by_rule(sample):
        yield f"### {group}: {rule}\n"
        cases = [question.case for question in sample.questions if question.rule == rule]
        yield from (quoted(shown(case)) for case in cases[:EXAMPLES])
