"""An evaluation as Markdown: all critics side by side, beside the paper's, then one of them in every part."""

from __future__ import annotations

from collections.abc import Mapping

from critic.cases import GROUPS
from critic.evaluation.figures import HUMAN, Evaluation
from critic.tables import markdown
from selfrag.evaluation.intervals import Estimate

PAPER: Mapping[str, Mapping[str, float]] = {
    "Llama2-7B (paper)": {"Retrieve": 0.938, "IsRel": 0.802, "IsSup": 0.935, "IsUse": 0.735},
    "FLAN-3B (paper)": {"Retrieve": 0.856, "IsRel": 0.820, "IsSup": 0.731, "IsUse": 0.721},
}
"""Base model -> group -> accuracy of the paper's critics against GPT-4's labels (arXiv 2310.11511, Figure 4).

Another measure, and other data, than accuracy against people: read them beside ours, not against ours.
"""

Named = Mapping[str, Evaluation]


def report(evaluations: Named, main: str) -> str:
    """The whole report.

    Args:
        evaluations: name of a critic -> its evaluation; all on the same rows.
        main: the critic that is shown in full.
    """
    shown = evaluations[main]
    groups = [group for group in GROUPS if group in shown.groups]
    paper = [(name, *[f"{known[group]:.3f}" for group in groups]) for name, known in PAPER.items()]
    header = ("critic", *groups)
    cut = [f"{name} {one.shortened} of {len(one.judgments)}" for name, one in evaluations.items() if one.shortened]
    sections = [
        "## Accuracy, all rows\n",
        markdown(header, [*_across(evaluations, groups, None, "accuracy"), *paper]),
        *([f"Rows with a part shortened to fit the prompt: {'; '.join(cut)}.\n"] if cut else []),
        "## Accuracy, rows labelled by people\n",
        markdown(header, _across(evaluations, groups, HUMAN, "accuracy")),
        "## Macro-F1, all rows\n",
        markdown(header, _across(evaluations, groups, None, "macro_f1")),
        "## Macro-F1, rows labelled by people\n",
        markdown(header, _across(evaluations, groups, HUMAN, "macro_f1")),
        f"## {main} in full\n",
        _full(shown, groups),
    ]
    for group in groups:
        names = GROUPS[group].names
        rows = [(name, *row) for name, row in zip(names, shown.groups[group].confusion, strict=True)]
        sections += [f"### {group}: judged (columns) against gold (rows)\n", markdown(("gold", *names, "none"), rows)]
        sections += [f"### {group}: by source of the label, data set and rule\n", _parts(evaluations, main, group)]
    return "\n".join(sections)


def _across(evaluations: Named, groups: list[str], part: str | None, figure: str) -> list[tuple[str, ...]]:
    """One figure of every critic in every group, or in a part of it."""
    rows = []
    for name, one in evaluations.items():
        found = [one.groups.get(group) if part is None else one.parts.get(group, {}).get(part) for group in groups]
        rows.append((name, *["-" if f is None else _interval(getattr(f, figure)) for f in found]))
    return rows


def _full(evaluation: Evaluation, groups: list[str]) -> str:
    rows = []
    for group in groups:
        found = evaluation.groups[group]
        estimates = (found.accuracy, found.macro_f1, found.ece, found.brier)
        rows.append((group, found.accuracy.n, *map(_interval, estimates), f"{found.coverage:.3f}", found.undefined))
    return markdown(("group", "rows", "accuracy", "macro-F1", "ECE", "Brier", "coverage", "no judgment"), rows)


def _parts(evaluations: Named, main: str, group: str) -> str:
    others = {name: one.parts.get(group, {}) for name, one in evaluations.items() if name != main}
    rows = []
    for part, found in evaluations[main].parts[group].items():
        rivals = [parts[part].accuracy.value if part in parts else None for parts in others.values()]
        cells = ["-" if rival is None else f"{rival:.3f}" for rival in rivals]
        rows.append((part, found.accuracy.n, _interval(found.accuracy), f"{found.brier.value:.3f}", *cells))
    return markdown(("part", "rows", main, "Brier", *others), rows)


def _interval(estimate: Estimate) -> str:
    if not estimate.defined:
        return "-"
    if estimate.low != estimate.low:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
