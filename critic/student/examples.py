"""Labelled cases to what a training run learns: prompt masked, label learned, EOS after it. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from critic.cases import Labelled
from critic.student.codec import PromptCodec
from critic.student.sampling import length_weights
from selfrag.training.targets import GROUP_OF_ROLE, MASKED, Example, Group


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
    groups, labels = [row.case.group for row in rows], [row.label for row in rows]
    weights = length_weights(groups, labels, lengths)
    made = [replace(example(row, codec), weight=weight) for row, weight in zip(rows, weights, strict=True)]
    shortened: Counter[str] = Counter()
    for row in rows:
        shortened.update(codec.prompt(row.case).dropped.keys())
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
