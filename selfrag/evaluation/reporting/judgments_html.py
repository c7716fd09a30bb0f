"""Judgments as HTML: the most probable label as a badge, all probabilities, and who judged if no token did."""

from __future__ import annotations

from selfrag.pages.escaping import isolated
from selfrag.pages.palette import COLOURS, slug
from selfrag.reflection.judgment import Judgment, Source

UNEXPECTED = 0.5
"""Coverage below this is said: most probability was on other words than the labels."""


def judged(judgment: Judgment | None) -> str:
    """One judgment; a dash for one that was not made."""
    if judgment is None:
        return "-"
    top = judgment.distribution.index(max(judgment.distribution))
    label = judgment.labels.labels[top]
    kind = f" t-{slug(label.token)}" if label.token in COLOURS else ""
    badge = f'<span class="token{kind}">{isolated(label.name, 40)} {judgment.distribution[top]:.2f}</span>'
    rest = [
        f"{isolated(other.name, 40)} {share:.2f}"
        for i, (other, share) in enumerate(zip(judgment.labels, judgment.distribution, strict=True))
        if i != top and share >= 0.005
    ]
    notes = [f"coverage {judgment.coverage:.2f}"] if judgment.coverage < UNEXPECTED else []
    notes += [] if judgment.source is Source.TOKEN else [f"by {judgment.source}"]
    return badge + "".join(f' <span class="dim">{note}</span>' for note in [*rest, *notes])
