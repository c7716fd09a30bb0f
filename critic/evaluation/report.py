"""An evaluation as Markdown: all critics side by side, then one of them in every part."""

from __future__ import annotations

from collections.abc import Mapping

from critic.cases import GROUPS
from critic.evaluation.figures import HUMAN, Evaluation, Figures
from critic.tables import markdown
from selfrag.evaluation.intervals import Estimate

ACCURACY: Mapping[str, Mapping[str, float]] = {
    "Llama2-7B (paper)": {"Retrieve": 0.938, "IsRel": 0.802, "IsSup": 0.935, "IsUse": 0.735},
    "FLAN-3B (paper)": {"Retrieve": 0.856, "IsRel": 0.820, "IsSup": 0.731, "IsUse": 0.721},
}
"""Base model -> group -> accuracy."""


Named = Mapping[str, Evaluation]


def report(evaluations: Named, main: str) -> str:
    """The whole report.

    Args:
        evaluations: name of a critic -> its evaluation; all on the same rows.
        main: the critic that is shown in full and compared with the others.
    """
    shown = evaluations[main]
    groups = [group for group in GROUPS if group in shown.groups]
    sections = [
        "## Accuracy, all rows\n",
        _across(evaluations, groups, None),
        *_shortened(evaluations),
        "## Accuracy, rows labelled by people\n",
        _across(evaluations, groups, HUMAN),
        "## Macro-F1, all rows\n",
        _across(evaluations, groups, None, "macro_f1"),
        "## Macro-F1, rows labelled by people\n",
        _across(evaluations, groups, HUMAN, "macro_f1"),
    ]
    if len(evaluations) > 1:
        sections += [f"## Does {main} beat the others? All rows, then rows labelled by people\n"]
        sections += [_verdicts(evaluations, main, groups, part) for part in (None, HUMAN)]
    sections += [f"## {main} in full\n", _full(shown, groups)]
    for group in groups:
        sections += [f"### {group}: judged (columns) against gold (rows)\n", _confusion(shown.groups[group])]
        sections += [f"### {group}: by source of the label, data set and rule\n", _parts(evaluations, main, group)]
    return "\n".join(sections)


def beats(one: Estimate, other: Estimate) -> bool:
    """Whether the first interval lies above the second."""
    return one.low > other.high


def _across(evaluations: Named, groups: list[str], part: str | None, figure: str = "accuracy") -> str:
    rows: list[tuple[str, ...]] = []
    for name, evaluation in evaluations.items():
        found = [_part(evaluation, group, part) for group in groups]
        rows.append((name, *["-" if f is None else _interval(getattr(f, figure)) for f in found]))
    if figure == "accuracy" and part is None:
        rows += [(name, *[f"{known[g]:.3f}" for g in groups]) for name, known in ACCURACY.items()]
    return markdown(("critic", *groups), rows)


def _shortened(evaluations: Named) -> list[str]:
    """One line on rows that a prompt could not hold whole; none where there are no such rows."""
    found = [f"{name} {one.shortened} of {len(one.judgments)}" for name, one in evaluations.items() if one.shortened]
    return [f"Rows with a part shortened to fit the prompt: {'; '.join(found)}.\n"] if found else []


def _verdicts(evaluations: Named, main: str, groups: list[str], part: str | None) -> str:
    """Accuracy and macro-F1: where people labelled mostly one way, always saying that is accurate and useless."""
    rows = []
    for name, evaluation in evaluations.items():
        if name == main:
            continue
        for figure in ("accuracy", "macro_f1"):
            cells = []
            for group in groups:
                ours, theirs = _part(evaluations[main], group, part), _part(evaluation, group, part)
                if ours is None or theirs is None:
                    cells.append("no such rows")
                else:
                    cells.append(_verdict(getattr(ours, figure), getattr(theirs, figure)))
            rows.append((name, figure.replace("_f1", "-F1"), *cells))
    return markdown(("against", "in", *groups), rows)


def _part(evaluation: Evaluation, group: str, part: str | None) -> Figures | None:
    return evaluation.groups.get(group) if part is None else evaluation.parts.get(group, {}).get(part)


def _verdict(ours: Estimate, theirs: Estimate) -> str:
    if beats(ours, theirs):
        return "yes"
    if beats(theirs, ours):
        return "no: clearly worse"
    return "above, intervals overlap" if ours.value > theirs.value else "no"


def _full(evaluation: Evaluation, groups: list[str]) -> str:
    header = ("group", "rows", "accuracy", "macro-F1", "ECE", "Brier", "coverage", "no judgment")
    return markdown(
        header,
        [
            (
                group,
                found.accuracy.n,
                *[_interval(e) for e in (found.accuracy, found.macro_f1, found.ece, found.brier)],
                f"{found.coverage:.3f}",
                found.undefined,
            )
            for group, found in ((group, evaluation.groups[group]) for group in groups)
        ],
    )


def _confusion(found: Figures) -> str:
    names = GROUPS[found.group].names
    return markdown(("gold", *names, "none"), [(name, *row) for name, row in zip(names, found.confusion, strict=True)])


def _parts(evaluations: Named, main: str, group: str) -> str:
    rows = []
    for part, found in evaluations[main].parts[group].items():
        rivals = [e.parts.get(group, {}).get(part) for name, e in evaluations.items() if name != main]
        cells = ["-" if rival is None else f"{rival.accuracy.value:.3f}" for rival in rivals]
        rows.append((part, found.accuracy.n, _interval(found.accuracy), f"{found.brier.value:.3f}", *cells))
    others = [name for name in evaluations if name != main]
    return markdown(("part", "rows", main, "Brier", *others), rows)


def _interval(estimate: Estimate) -> str:
    if estimate.value != estimate.value:
        return "-"
    if estimate.low != estimate.low:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
