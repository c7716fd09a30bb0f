"""Ablations at inference: the lower part of the paper's Table 3a, and the paper's policy against the published code's.

Names, policies and published figures; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.intervals import NONE
from selfrag.evaluation.task import Task
from selfrag.experiments.steering.setting import Setting

WHOLE = "selfrag"
"""Name of the policy that the others take something from."""

PUBLISHED: Mapping[str, tuple[float | None, float | None, float | None]] = MappingProxyType(
    {
        WHOLE: (45.5, 73.5, 32.1),
        "no-retrieval": (24.7, 73.0, None),
        "hard-constraints": (28.3, 72.6, None),
        "retrieve-top-1": (41.8, 73.1, 28.6),
        "remove-issup": (44.1, 73.2, 30.6),
    }
)
"""Table 3a, models of 50k training rows: accuracy on PopQA and PubHealth, exact match on ASQA, in percent."""
PUBLISHED_ON = ("PopQA", "PubHealth", "ASQA em")


def ablations(base: Decoding, task: Task) -> tuple[Setting, ...]:
    """The rows of the table for one task; the whole comes first.

    `hard-constraints` retrieves where Retrieve=Yes is the most probable token, in place of the threshold.
    `forbid-unsupported` is not in the paper's table: its hard constraint of section 3.3, in the search. `official` is
    `Decoding.official` for answers of this length; on closed sets options are scored under it, not generated.
    """
    official = Decoding.official(max_segments=task.segments, passages=base.passages, passage_tokens=base.passage_tokens)
    return (
        Setting(WHOLE, base),
        Setting("no-retrieval", replace(base, mode="never")),
        Setting("hard-constraints", replace(base, mode="adaptive", threshold=None)),
        Setting("retrieve-top-1", replace(base, mode="always", passages=1)),
        Setting("remove-issup", replace(base, weights=replace(base.weights, issup=0.0))),
        Setting("always", replace(base, mode="always")),
        Setting("forbid-unsupported", replace(base, forbid={"issup": "No support / Contradictory"})),
        Setting("official", official),
    )


def published_rows() -> list[list[str]]:
    """Header and rows of the published table, each as the difference to the whole where there is one."""
    whole = PUBLISHED[WHOLE]
    rows = [["published", *PUBLISHED_ON]]
    for name, figures in PUBLISHED.items():
        cells = [_cell(figure, full if name != WHOLE else None) for figure, full in zip(figures, whole, strict=True)]
        rows.append([name, *cells])
    return rows


def _cell(figure: float | None, whole: float | None) -> str:
    if figure is None:
        return NONE
    return f"{figure:.1f}" if whole is None else f"{figure:.1f} ({figure - whole:+.1f})"
