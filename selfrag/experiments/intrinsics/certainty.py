"""Certainty of the base model's own answers beside baselines, and what the adapter costs in accuracy (section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from selfrag.common.jsonl import JsonObject
from selfrag.evaluation.intervals import NONE, json_values, mean
from selfrag.evaluation.metrics.classification import (
    Bin,
    brier,
    calibration_error,
    reliability,
)
from selfrag.evaluation.published import why_left_out
from selfrag.experiments.intrinsics.part_tables import area, published_table
from selfrag.experiments.intrinsics.subjects import PUBLISHED, Subject, ask
from selfrag.experiments.report_tables import (
    MeasuredSection,
    ReportTable,
    percent,
    share,
)
from selfrag.interface import (
    ChatPrompt,
    Completion,
    Failed,
    JudgeInput,
    Message,
    ModelRequest,
    Slot,
    count_of,
)
from selfrag.judges.sentences import last_query
from selfrag.training.intrinsics.certainty import (
    ChoiceAnswer,
    ChoiceQuestion,
    OwnAnswer,
    confidences,
    of_other_data_sets,
)

UNCERTAINTY_PART = "uncertainty"
MMLU_TASKS = 57
UNCERTAINTY_HEAD = (
    "system",
    "ECE of the decile",
    "of the expectation",
    "adaptive bins",
    "Brier",
    "AUC",
    "undefined",
)
AFTER, BEFORE = "after", "before"
"""When the certainty is asked for: after the answer was written, or before."""


@dataclass(frozen=True, slots=True)
class _Certainty:
    """How certain one system is of one answer; None where undefined."""

    decile: float | None
    expected: float | None


def evaluate_certainty(
    answers: Sequence[OwnAnswer],
    subjects: Sequence[Subject],
    share_right: float | None,
    seed: int,
) -> MeasuredSection:
    """Measure every subject on the base model's own answers, after the answer and before it, in all and by data set.

    Baselines are how often the model was right in training (`share_right`), and a calibrator of the other data sets, as
    for a task that nobody has calibrated.
    """
    # 1. baselines
    accuracy = fmean(answer.is_right for answer in answers)
    constant = accuracy if share_right is None else share_right
    known = []  # the probability of each letter that it chose
    for answer, confidence in zip(answers, confidences(answers).tolist(), strict=True):
        known.append(confidence if isinstance(answer, ChoiceAnswer) else None)
    items: list[JsonObject] = []
    for answer, probability in zip(answers, known, strict=True):
        right = answer.is_right
        items.append({"id": answer.id, "right": right, "own probability": probability})
    baselines = {
        "always the training accuracy": [_Certainty(constant, constant)] * len(answers)
    }
    for name, values in (
        ("base: probability of its answer", known),
        ("base: calibrated on the other data sets", of_other_data_sets(answers)),
    ):
        if set(values) != {None}:
            baselines[name] = [_Certainty(value, value) for value in values]
    # 2. every subject, after the answer and before it
    tables: list[ReportTable] = []
    diagrams: dict[str, tuple[Bin, ...]] = {}
    figures: dict[str, JsonObject] = {}
    for moment in (AFTER, BEFORE):
        systems = dict(baselines)
        states = [answer.state(after=moment == AFTER) for answer in answers]
        for subject in subjects:
            systems[subject.name] = []
            results = ask(subject, UNCERTAINTY_PART, states)
            for item, result in zip(items, results, strict=True):
                certainty = _Certainty(result.decile, result.certainty)
                systems[subject.name].append(certainty)
                item[f"{subject.name}, {moment}"] = certainty.expected
        lines = []
        errors: dict[str, dict[str, float]] = {}  # of each system, by data set
        for system, certainties in systems.items():
            cells, measured, bins = _figures(answers, certainties, seed)
            lines.append((system, *cells))
            errors[system] = _by_data_set(answers, certainties, seed)
            measured["ece_by_data_set"] = errors[system]
            figures.setdefault(system, {})[moment] = measured
            if moment == AFTER:
                diagrams[system] = bins
        title = f"Certainty, {moment} the answer ({count_of(len(answers), 'questions')}, {100 * accuracy:.1f}% right)"
        tables.append(ReportTable(title, UNCERTAINTY_HEAD, tuple(lines)))
        count = len({answer.dataset for answer in answers})
        title = (
            f"Calibration by data set, {moment} the answer ({count_of(count, 'sets')})"
        )
        tables += _sets_table(title, errors)
    notes = (
        "AUC: how often a right answer is given more certainty than a wrong one; 0.5 is chance",
    )
    tables[0] = replace(tables[0], notes=notes)
    # 3. what an adapter costs
    questions = [item.question for item in answers if isinstance(item, ChoiceAnswer)]
    adapted = [item for item in subjects if item.adapters.get(UNCERTAINTY_PART)]
    if adapted and questions:
        table, accuracies = _accuracy(questions, adapted, seed)
        tables.append(table)
        for system, accuracy_of in accuracies.items():
            figures.setdefault(system, {})["accuracy"] = accuracy_of
    sets = {answer.dataset for answer in answers}
    data = "mmlu" if len(sets) == MMLU_TASKS else ", ".join(sorted(sets)[:3])
    paper = published_table(
        "MMLU, section 3.2",
        ("mean ECE", "largest"),
        PUBLISHED["calibration"],
        digits=3,
        left_out=why_left_out(
            "intrinsics-3-2", data, len(answers), "expected calibration error"
        ),
    )
    return MeasuredSection(
        UNCERTAINTY_PART, (*tables, paper), figures, tuple(items), diagrams
    )


def _sets_table(
    title: str, errors: Mapping[str, Mapping[str, float]]
) -> list[ReportTable]:
    """Return the table of calibration errors by data set, if a system was measured on more than one."""
    lines = []
    for system, by_set in errors.items():
        if len(by_set) > 1:
            worst = max(by_set, key=lambda name: by_set[name])
            average = fmean(by_set.values())
            lines.append((system, f"{average:.3f}", f"{by_set[worst]:.3f}", worst))
    head = ("system", "mean ECE", "largest", "of")
    return [ReportTable(title, head, tuple(lines))] * bool(lines)


def _figures(
    answers: Sequence[OwnAnswer], certainties: Sequence[_Certainty], seed: int
) -> tuple[Sequence[str], JsonObject, tuple[Bin, ...]]:
    """Return the cells, the figures and the bins of a diagram of one system."""
    truth, expected, middle = list[float](), list[float](), list[float]()
    for answer, certainty in zip(answers, certainties, strict=True):
        if certainty.expected is not None:
            truth.append(float(answer.is_right))
            expected.append(float(certainty.expected))
            middle.append(float(certainty.decile or 0.0))
    undefined = len(answers) - len(truth)
    if not truth:
        return (*[NONE] * 5, str(undefined)), {"undefined": undefined}, ()
    figures = {
        "ece_decile": calibration_error(middle, truth, seed=seed),
        "ece": calibration_error(expected, truth, seed=seed),
        "ece_adaptive": calibration_error(expected, truth, adaptive=True, seed=seed),
        "brier": brier(expected, truth, seed=seed),
        "auc": area(zip(truth, expected, strict=True), seed),
    }
    cells = (*map(share, figures.values()), str(undefined))
    values = {**json_values(figures), "undefined": undefined}
    return cells, values, reliability(expected, truth)


def _by_data_set(
    answers: Sequence[OwnAnswer], certainties: Sequence[_Certainty], seed: int
) -> dict[str, float]:
    """Return the expected calibration error of each data set that has a defined certainty (section 3.2)."""
    members: dict[str, list[tuple[float, float]]] = {}
    for answer, certainty in zip(answers, certainties, strict=True):
        if certainty.decile is not None:
            pair = certainty.decile, float(answer.is_right)
            members.setdefault(answer.dataset, []).append(pair)
    errors = {}
    for name, pairs in members.items():
        errors[name] = calibration_error(*zip(*pairs, strict=True), seed=seed).value
    return errors


def _accuracy(
    questions: Sequence[ChoiceQuestion], adapted: Sequence[Subject], seed: int
) -> tuple[ReportTable, dict[str, JsonObject]]:
    """Measure how often a model chooses the right letter, with an adapter in place and without (section 3.2)."""
    systems = {"without an adapter": _letters(questions, adapted[0], None)}
    for subject in adapted:
        adapter = subject.adapters[UNCERTAINTY_PART]
        systems[f"with {subject.name}"] = _letters(questions, subject, adapter)
    names = sorted({question.dataset for question in questions})
    lines, figures = [], {}
    for system, hits in systems.items():
        by_set: dict[str, list[float]] = {name: [] for name in names}
        for question, hit in zip(questions, hits, strict=True):
            if hit is not None:
                by_set[question.dataset].append(hit)
        over_sets = mean(map(fmean, filter(None, by_set.values())), seed=seed)
        accuracy = mean(hits, seed=seed)
        undefined = str(hits.count(None))
        lines.append((system, percent(accuracy), percent(over_sets), undefined))
        figures[system] = {
            "questions": accuracy.as_dict(),
            "data sets": over_sets.as_dict(),
        }
    title = (
        f"Zero-shot accuracy by letters ({count_of(len(questions), 'questions')},"
        f" {count_of(len(names), 'data sets')})"
    )
    head = ("model", "of questions", "mean of data sets", "undefined")
    return ReportTable(title, head, tuple(lines)), figures


def _letters(
    questions: Sequence[ChoiceQuestion], subject: Subject, adapter: str | None
) -> list[float | None]:
    """Return whether the most probable letter is the right one; None where it could not be asked."""
    requests = [replace(_lettered(question), adapter=adapter) for question in questions]
    replies: list[Completion | Failed] = []
    for start in range(0, len(requests), subject.chunk):
        replies += subject.executor.run(requests[start : start + subject.chunk])
    hits: list[float | None] = []
    for question, reply in zip(questions, replies, strict=True):
        hit = None
        if not isinstance(reply, Failed) and reply.scores and reply.scores[0]:
            scores = list(reply.scores[0])
            hit = float(scores.index(max(scores)) == question.right)
        hits.append(hit)
    return hits


def _lettered(question: ChoiceQuestion) -> ModelRequest:
    state = JudgeInput((Message("user", question.prompt),))
    slot = Slot(tuple(question.letters), last_query(state))
    return ModelRequest(state, ChatPrompt(state.messages), slots=(slot,))
