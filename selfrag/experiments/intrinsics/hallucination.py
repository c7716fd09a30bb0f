"""Hallucinated responses and sentences beside the most frequent label and published figures (table 8 of the paper)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from selfrag.evaluation.metrics.classification import (
    FAITHFUL,
    HALLUCINATED,
    classification,
    detection,
)
from selfrag.experiments.intrinsics.part_tables import (
    ALL_ROWS,
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
from selfrag.intrinsics.catalog import find
from selfrag.judges.wire import Codec
from selfrag.reflection.intrinsic_labels import FAITHFULNESS, in_set
from selfrag.training.intrinsics.rows import WORSE, IntrinsicRow, badness, gold_of

HALLUCINATION_PART = "hallucination_detection"
HALLUCINATION_HEAD = (
    "system",
    "P",
    "R",
    "F1",
    "kept",
    "AUC",
    "sentences: accuracy",
    "macro-F1",
    "undefined",
)


@dataclass(frozen=True, slots=True)
class _JudgedResponse:
    """What one system says of one response."""

    flagged: bool | None  # None where undefined
    lowest: float | None  # expected faithfulness of its worst sentence
    labels: Sequence[str | None]  # of its sentences
    gold: Sequence[str | None]  # of its sentences, as the system's dialect splits them


def evaluate_hallucination(
    rows: Sequence[IntrinsicRow],
    subjects: Sequence[Subject],
    train: Sequence[IntrinsicRow],
    seed: int,
) -> MeasuredSection:
    """Measure every subject, and the most frequent label of the training rows.

    A response is hallucinated in truth if it holds something unsupported: its worst label is partial or unfaithful.
    It is flagged if the most probable label of one sentence lies below 0.1, which is `unfaithful`.
    """
    # 1. what the baseline and every subject say of each response
    frequent: Counter[str | None] = Counter()
    for row in train or rows:
        frequent.update(_grade(label) for _, label in row.spans or ())
    common = max(WORSE, key=lambda name: frequent[name])
    gold = _sentence_labels(rows, find(HALLUCINATION_PART).chat)
    systems = {"majority": list[_JudgedResponse]()}
    for labels in gold:
        grades_of_majority = [common] * len(labels)
        response = _JudgedResponse(common == WORSE[-1], 0.5, grades_of_majority, labels)
        systems["majority"].append(response)
    worst = list(map(_worst, rows))
    items = item_records(rows, {"worst": worst})
    for subject in subjects:
        results = ask(subject, HALLUCINATION_PART, [row.state for row in rows])
        golds = _sentence_labels(rows, subject.codec(HALLUCINATION_PART))
        systems[subject.name] = []
        for item, result, labels in zip(items, results, golds, strict=True):
            grades = [_grade(sentence.label) for sentence in result.sentences]
            flagged, lowest = result.is_hallucinated, result.lowest
            response = _JudgedResponse(flagged, lowest, grades, labels)
            systems[subject.name].append(response)
            item[subject.name] = {
                "flagged": flagged,
                "lowest": lowest,
                "labels": grades,
            }

    # 2. figures
    def truth_of(members: Sequence[int]) -> list[bool]:
        return [worst[place] in ("partial", "unfaithful") for place in members]

    def measure(
        system: str, members: Sequence[int]
    ) -> tuple[Sequence[str], dict[str, Any]]:
        responses = [systems[system][place] for place in members]
        return _figures(truth_of(members), responses, seed)

    tables, by_part = measure_parts(
        "Hallucinated responses",
        HALLUCINATION_HEAD,
        parts_of(rows),
        systems,
        measure,
        size=lambda members: f"{sum(truth_of(members))} of {len(members)}",
    )
    figures = {}
    for system, parts in by_part.items():
        figures[system] = {**parts.pop(ALL_ROWS), **parts}
    known = sum(len(labels) - labels.count(None) for labels in gold)
    notes = (
        "R: share of the hallucinated responses that are flagged; kept: of the faithful ones that are not",
        "AUC: of the lowest expected faithfulness of a sentence",
        f"Sentences: those whose own label is known, {known} of them",
    )
    tables[0] = replace(tables[0], notes=notes)
    paper = published_table(
        "Table 8, RAGTruth QA",
        HALLUCINATION_HEAD[1:4],
        PUBLISHED["hallucination"],
        left_out=why_table_left_out(
            "intrinsics-8", rows, "ragtruth", "precision, recall, F1"
        ),
    )
    return MeasuredSection(HALLUCINATION_PART, (*tables, paper), figures, tuple(items))


def _grade(label: str | None) -> str | None:
    """Return a label of any dialect as one of `WORSE`."""
    return None if label is None else in_set(FAITHFULNESS, label)


def _sentence_labels(
    rows: Sequence[IntrinsicRow], codec: Codec
) -> list[list[str | None]]:
    """Return the grades of the sentences of each row, as the codec splits them."""
    grades = []
    for row in rows:
        labels = gold_of(row, codec.encode(row.state)).labels
        grades.append(list(map(_grade, labels)))
    return grades


def _worst(row: IntrinsicRow) -> str:
    labels = [label for _, label in row.spans or ()]
    if row.response is not None:
        labels = [row.response]
    return WORSE[max(map(badness, labels), default=0)]


def _figures(
    truth: Sequence[bool], judged: Sequence[_JudgedResponse], seed: int
) -> tuple[Sequence[str], dict[str, Any]]:
    """Return the cells and the figures of one system, of responses and of their sentences."""
    flags, risks = [], []
    right, predicted = list[str](), list[str | None]()
    for response in judged:
        flags.append(response.flagged)
        risks.append(None if response.lowest is None else 1 - response.lowest)
        labels = response.labels[: len(response.gold)]
        for gold, label in zip_longest(response.gold, labels):
            if gold is not None:
                right.append(gold)
                predicted.append(label)
    responses = detection(truth, flags, seed=seed)
    auc = area(zip(truth, risks, strict=True), seed)
    sentences = classification(right, predicted, WORSE, seed=seed)
    cells = (
        *class_cells(responses.classes[HALLUCINATED]),
        percent(responses.classes[FAITHFUL].recall),
        share(auc),
        percent(sentences.accuracy),
        percent(sentences.macro_f1),
        str(responses.undefined),
    )
    return cells, {
        "responses": responses.as_dict(),
        "auc": auc.as_dict(),
        "sentences": sentences.as_dict(),
    }
