"""Answerability beside the most frequent label and published figures (tables 9 and 10 of the intrinsics paper)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    UNANSWERABLE,
    classification,
)
from selfrag.experiments.intrinsics.part_tables import (
    area,
    class_cells,
    item_records,
    measure_parts,
    parts_of,
    published_table,
    why_table_left_out,
)
from selfrag.experiments.intrinsics.subjects import PUBLISHED, Subject, ask
from selfrag.experiments.report_tables import MeasuredSection, percent, share
from selfrag.training.intrinsics.rows import IntrinsicRow

ANSWERABILITY_PART = "answerability"
LABELS = (UNANSWERABLE, ANSWERABLE)
_CLASSES = (
    "unans. P",
    "unans. R",
    "unans. F1",
    "ans. P",
    "ans. R",
    "ans. F1",
    "weighted F1",
)
TABLES = {
    "Table 9, SQuADRun": ("intrinsics-9", "squad2"),
    "Table 10, MT-RAG": ("intrinsics-10", "mtrag"),
}
"""Published table to its entry in `published.toml` and the data set of its rows."""
ANSWERABILITY_HEAD = ("system", *_CLASSES, "AUC", "undefined")


@dataclass(frozen=True, slots=True)
class _Verdict:
    label: str | None  # None where undefined
    answerable: float | None  # probability


def evaluate_answerability(
    rows: Sequence[IntrinsicRow],
    subjects: Sequence[Subject],
    train: Sequence[IntrinsicRow],
    seed: int,
) -> MeasuredSection:
    """Measure every subject, and the most frequent label of the training rows."""
    # 1. verdicts of each system
    frequent = Counter(str(row.label) for row in train or rows)
    majority = max((ANSWERABLE, UNANSWERABLE), key=lambda name: frequent[name])
    systems = {"majority": [_Verdict(majority, 0.5)] * len(rows)}
    for subject in subjects:
        verdicts = systems[subject.name] = []
        for result in ask(subject, ANSWERABILITY_PART, [row.state for row in rows]):
            chance = result.answerable
            label = None if chance is None else LABELS[chance >= 0.5]
            verdicts.append(_Verdict(label, chance))

    # 2. figures
    def measure(
        system: str, members: Sequence[int]
    ) -> tuple[Sequence[str], dict[str, Any]]:
        gold, labels, scored = [], [], []
        for place in members:
            truth, verdict = str(rows[place].label), systems[system][place]
            gold.append(truth)
            labels.append(verdict.label)
            scored.append((truth == ANSWERABLE, verdict.answerable))
        classes = classification(gold, labels, LABELS, seed=seed)
        auc = area(scored, seed)
        cells = (
            *class_cells(classes.classes[UNANSWERABLE]),
            *class_cells(classes.classes[ANSWERABLE]),
            percent(classes.weighted_f1),
            share(auc),
            str(classes.undefined),
        )
        return cells, {**classes.as_dict(), "auc": auc.as_dict()}

    tables, figures = measure_parts(
        "Answerability", ANSWERABILITY_HEAD, parts_of(rows), systems, measure
    )
    for name, published in PUBLISHED["answerability"].items():
        number, data = TABLES[name]
        left_out = why_table_left_out(number, rows, data, "precision, recall, F1")
        tables.append(published_table(name, _CLASSES, published, left_out=left_out))
    columns: dict[str, Sequence[Any]] = {
        "source": [row.source for row in rows],
        "truth": [row.label for row in rows],
    }
    for system, verdicts in systems.items():
        columns[system] = list(map(asdict, verdicts))
    items = item_records(rows, columns)
    return MeasuredSection(ANSWERABILITY_PART, tuple(tables), figures, tuple(items))
