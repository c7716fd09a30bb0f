"""Hallucination detection: flagged responses by the paper's rule (table 8), and labels of sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from selfrag.evaluation.intervals import Estimate, pooled_auc
from selfrag.evaluation.metrics.classification import HALLUCINATED, classification, detection
from selfrag.experiments.intrinsics.published import HALLUCINATION
from selfrag.experiments.intrinsics.section import Section, Table, given, percent, share
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.intrinsics.training.gold import gold_of
from selfrag.intrinsics.training.rows import WORSE, Labelled

NAME = "hallucination_detection"
HEAD = ("system", "P", "R", "F1", "AUC", "sentences: accuracy", "macro-F1", "undefined")


def evaluate(rows: Sequence[Labelled], subjects: Sequence[Subject], train: Sequence[Labelled], seed: int) -> Section:
    """Measure every subject, and the most frequent label of the training rows.

    A response is hallucinated in truth if it holds something unsupported: its worst label is partial or unfaithful.
    It is flagged if the most probable label of one sentence lies below 0.1, which is `unfaithful`.
    """
    worst = [_worst(row) for row in rows]
    truth = [one in ("partial", "unfaithful") for one in worst]
    frequent = Counter(label for row in train or rows for _, label in row.spans or ())
    common = max(WORSE, key=lambda name: frequent[name])
    lines = []
    figures: dict[str, Any] = {}
    items: list[dict[str, Any]] = [{"id": row.id, "worst": one} for row, one in zip(rows, worst, strict=True)]
    sites = _gold(rows, subjects[0])
    majority = [[common] * len(labels) for labels in sites]
    said: list[bool | None] = [common == "unfaithful"] * len(rows)
    lines.append(_line("majority", truth, said, [0.5] * len(rows), sites, majority, figures, seed))
    for subject in subjects:
        results = [subject.result(NAME, found) for found in subject.ask(NAME, [row.state for row in rows])]
        flags = [result.is_hallucinated for result in results]
        lowest = [result.lowest for result in results]
        labels = [[sentence.label for sentence in result.sentences] for result in results]
        lines.append(_line(subject.name, truth, flags, lowest, sites, labels, figures, seed))
        for item, flag, low, names in zip(items, flags, lowest, labels, strict=True):
            item[subject.name] = {"flagged": flag, "lowest": low, "labels": names}
    own = Table(
        f"Hallucinated responses ({sum(truth)} of {len(rows)})",
        HEAD,
        tuple(lines),
        (
            "AUC: of the lowest expected faithfulness of a sentence",
            "Sentences: those whose own label is known, "
            f"{sum(label is not None for labels in sites for label in labels)} of them",
        ),
    )
    published = Table(
        "Published: Table 8, RAGTruth QA",
        HEAD[:4],
        tuple((system, *given(*values)) for system, values in HALLUCINATION.items()),
    )
    return Section(NAME, (own, published), figures, tuple(items))


def _worst(row: Labelled) -> str:
    if row.response is not None:
        return row.response
    return max((label for _, label in row.spans or ()), key=WORSE.index, default="NA")


def _gold(rows: Sequence[Labelled], subject: Subject) -> list[tuple[str | None, ...]]:
    codec = subject.codec(NAME)
    return [gold_of(row, codec.encode(row.state)).labels for row in rows]


def _line(
    system: str,
    truth: Sequence[bool],
    flags: Sequence[bool | None],
    lowest: Sequence[float | None],
    gold: Sequence[Sequence[str | None]],
    labels: Sequence[Sequence[str | None]],
    figures: dict[str, Any],
    seed: int,
) -> tuple[str, ...]:
    found = detection(truth, flags, seed=seed)
    area = _auc(truth, lowest, seed)
    pairs = [
        (right, labels[at][place] if place < len(labels[at]) else None)
        for at, sentences in enumerate(gold)
        for place, right in enumerate(sentences)
        if right is not None
    ]
    sentences = classification([right for right, _ in pairs], [one for _, one in pairs], WORSE, seed=seed)
    figures[system] = {
        "responses": found.as_dict(),
        "auc": area.as_dict(),
        "sentences": sentences.as_dict(),
    }
    one = found.classes[HALLUCINATED]
    return (
        system,
        percent(one.precision),
        percent(one.recall),
        percent(one.f1),
        share(area),
        percent(sentences.accuracy),
        percent(sentences.macro_f1),
        str(found.undefined),
    )


def _auc(truth: Sequence[bool], lowest: Sequence[float | None], seed: int) -> Estimate:
    known = [(bad, 1 - low) for bad, low in zip(truth, lowest, strict=True) if low is not None]
    return pooled_auc([[p] if bad else [] for bad, p in known], [[] if bad else [p] for bad, p in known], seed=seed)
