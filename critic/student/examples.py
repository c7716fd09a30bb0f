"""The training rows of a critic as token ids: balanced by label, and weighted so that no length tells a label.

Known shortcut of any collected data: one label's passages are longer than another's, and a critic then reads the length
instead of the passage. Rows are weighed so that within each stretch of lengths the labels weigh alike.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from critic.cases import GROUPS, Labelled
from critic.student.prompt import PromptCodec
from selfrag.errors import UserError
from selfrag.training.targets import GROUP_OF_ROLE, MASKED, Example, Group

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


def example(row: Labelled, codec: PromptCodec) -> Example:
    """One row; the loss is on the label and the EOS after it, nowhere else."""
    prompt = codec.prompt(row.case)
    labels = row.case.labels
    answer = prompt.options[labels.names.index(row.label)]
    learned = (*answer, codec.eos_id)
    kinds = [*[int(GROUP_OF_ROLE[labels.role])] * len(answer), int(Group.EOS)]
    return Example(
        ids=(*prompt.ids, *learned),
        labels=(*[MASKED] * len(prompt.ids), *learned),
        groups=(*[int(Group.TEXT)] * len(prompt.ids), *kinds),
        dropped_tokens=sum(prompt.dropped.values()),
    )


def examples(rows: Sequence[Labelled], codec: PromptCodec) -> tuple[list[Example], dict[str, Any]]:
    """All rows with weights against the length shortcut, and the counts that belong into a manifest."""
    lengths = [evidence_tokens(row, codec) for row in rows]
    weights = length_weights([row.case.group for row in rows], [row.label for row in rows], lengths)
    made = [replace(example(row, codec), weight=weight) for row, weight in zip(rows, weights, strict=True)]
    shortened = Counter(part for row in rows for part in codec.prompt(row.case).dropped)
    by_label: dict[str, list[int]] = defaultdict(list)
    for row, length in zip(rows, lengths, strict=True):
        by_label[f"{row.case.group}/{row.label}"].append(length)
    facts = {
        "rows": len(rows),
        "rows_by_label": {name: len(found) for name, found in sorted(by_label.items())},
        "median_passage_tokens_by_label": {name: statistics.median(found) for name, found in sorted(by_label.items())},
        "rows_with_shortened_part": dict(sorted(shortened.items())),
        "rows_with_shortened_passages": shortened["evidence"],
    }
    return made, facts


def evidence_tokens(row: Labelled, codec: PromptCodec) -> int:
    """Tokens that the passage adds to the prompt; 0 without one."""
    if row.case.evidence is None:
        return 0
    without = replace(row.case, evidence=None)
    return len(codec.prompt(row.case).ids) - len(codec.prompt(without).ids)
