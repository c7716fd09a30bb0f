"""Answerability on labelled rows: precision, recall, F1 of both classes (tables 9 and 10 of the paper)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from selfrag.evaluation.intervals import pooled_auc
from selfrag.evaluation.metrics.classification import ANSWERABLE, UNANSWERABLE, Classification, classification
from selfrag.experiments.intrinsics.published import ANSWERABILITY
from selfrag.experiments.intrinsics.section import Section, Table, given, percent, share
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.intrinsics.training.rows import Labelled

NAME = "answerability"
HEAD = ("system", "unans. P", "unans. R", "unans. F1", "ans. P", "ans. R", "ans. F1", "weighted F1", "AUC", "undefined")


def evaluate(rows: Sequence[Labelled], subjects: Sequence[Subject], train: Sequence[Labelled], seed: int) -> Section:
    """Measure every subject, and the most frequent label of the training rows."""
    truth = [str(row.label) for row in rows]
    frequent = Counter(str(row.label) for row in train or rows)
    majority = max((ANSWERABLE, UNANSWERABLE), key=lambda name: frequent[name])
    predictions: dict[str, list[str | None]] = {"majority": [majority] * len(rows)}
    chances: dict[str, list[float | None]] = {"majority": [0.5] * len(rows)}
    for subject in subjects:
        results = [subject.result(NAME, found) for found in subject.ask(NAME, [row.state for row in rows])]
        chances[subject.name] = [result.answerable for result in results]
        predictions[subject.name] = [None if p is None else _label(p) for p in chances[subject.name]]
    parts = {"all rows": range(len(rows))} | {
        name: [at for at, row in enumerate(rows) if row.source.split("/")[0] == name]
        for name in sorted({row.source.split("/")[0] for row in rows})
    }
    tables = []
    figures: dict[str, dict[str, Any]] = {}
    for part, members in parts.items():
        lines = []
        for system, said in predictions.items():
            found = classification(
                [truth[at] for at in members], [said[at] for at in members], (UNANSWERABLE, ANSWERABLE), seed=seed
            )
            area = _auc([truth[at] for at in members], [chances[system][at] for at in members], seed)
            lines.append((system, *_cells(found), share(area), str(found.undefined)))
            figures.setdefault(system, {})[part] = found.as_dict() | {"auc": area.as_dict()}
        tables.append(Table(f"Answerability, {part} ({len(members)})", HEAD, tuple(lines)))
    tables += [
        Table(f"Published: {name}", HEAD[:-2], tuple((system, *given(*values)) for system, values in systems.items()))
        for name, systems in ANSWERABILITY.items()
    ]
    return Section(NAME, tuple(tables), figures, tuple(_items(rows, predictions, chances)))


def _label(probability: float) -> str:
    return ANSWERABLE if probability >= 0.5 else UNANSWERABLE


def _auc(truth: Sequence[str], chances: Sequence[float | None], seed: int) -> Any:
    """Area under the ROC curve of p(answerable); every row is an item of its own."""
    known = [(one == ANSWERABLE, p) for one, p in zip(truth, chances, strict=True) if p is not None]
    return pooled_auc([[p] if is_one else [] for is_one, p in known], [[] if is_one else [p] for is_one, p in known],
                      seed=seed)  # fmt: skip


def _cells(found: Classification) -> tuple[str, ...]:
    cells = []
    for name in (UNANSWERABLE, ANSWERABLE):
        figures = found.classes[name]
        cells += [percent(figures.precision), percent(figures.recall), percent(figures.f1)]
    return (*cells, percent(found.weighted_f1))


def _items(
    rows: Sequence[Labelled], predictions: Mapping[str, Sequence[str | None]], chances: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    return [
        {
            "id": row.id,
            "source": row.source,
            "truth": row.label,
            **{system: {"label": said[at], "answerable": chances[system][at]} for system, said in predictions.items()},
        }
        for at, row in enumerate(rows)
    ]
