"""Which labelled rows a critic learns from: as many of each label, and no label told by the length of its passage.

Pure and seeded. Known shortcut of any collected data: one label's passages are longer than another's, and a critic then
reads the length instead of the passage. Rows are weighed so that within each stretch of lengths the labels weigh alike.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from critic.cases import GROUPS, Labelled
from selfrag.errors import UserError

WEIGHT_RANGE = (0.4, 2.5)
"""Bounds of a row's weight: a rare combination must not rule a step."""


def balanced(rows: Sequence[Labelled], per_label: Mapping[str, int | None], seed: int) -> list[Labelled]:
    """Rows with at most as many of each label as asked; data sets of a label are drawn alike, small ones whole.

    Args:
        rows: all rows.
        per_label: group to the most rows of each of its labels; None for all. A group left out is not used.
        seed: of the draw. The result keeps the order of `rows`.

    Raises:
        UserError: a group is unknown, or nothing is left.
    """
    unknown = sorted(set(per_label) - set(GROUPS))
    if unknown:
        raise UserError(f"unknown group {unknown[0]!r}; known: {', '.join(GROUPS)}")
    members: dict[tuple[str, str], dict[str, list[Labelled]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.case.group in per_label:
            members[row.case.group, row.label][f"{row.dataset}/{row.rule}"].append(row)
    chosen: set[str] = set()
    for (group, label), sources in members.items():
        limit = per_label[group]
        room = sum(map(len, sources.values())) if limit is None else limit
        rng = random.Random(f"{seed}/{group}/{label}")  # noqa: S311 - an order, not a secret
        for left, source in enumerate(sorted(sources, key=lambda name: (len(sources[name]), name))):
            share = min(len(sources[source]), room // (len(sources) - left))
            chosen.update(row.id for row in rng.sample(sources[source], share))
            room -= share
    if not chosen:
        raise UserError("no rows of the groups asked for; check the file and the groups")
    return [row for row in rows if row.id in chosen]


def length_weights(
    groups: Sequence[str], labels: Sequence[str], lengths: Sequence[int], *, stretch: int = 48
) -> list[float]:
    """A weight for each row that makes the labels of a group alike within each stretch of passage lengths.

    Args:
        groups: group of each row.
        labels: label of each row.
        lengths: tokens of each row's passage, as the model reads it; 0 without.
        stretch: tokens that count as one length.

    Returns:
        Weights with mean 1 in each group, within `WEIGHT_RANGE` before that.
    """
    keys = [(group, length and 1 + (length - 1) // stretch) for group, length in zip(groups, lengths, strict=True)]
    both = Counter(zip(keys, labels, strict=True))
    total = Counter(keys)
    kinds = Counter(key for key, _ in both)
    low, high = WEIGHT_RANGE
    raw = [
        min(high, max(low, total[key] / (kinds[key] * both[key, label]))) if key[1] else 1.0
        for key, label in zip(keys, labels, strict=True)
    ]
    sums: dict[str, float] = defaultdict(float)
    for group, weight in zip(groups, raw, strict=True):
        sums[group] += weight
    counts = Counter(groups)
    return [weight * counts[group] / sums[group] for group, weight in zip(groups, raw, strict=True)]
