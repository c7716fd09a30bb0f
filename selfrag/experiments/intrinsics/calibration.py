"""Certainty on the model's own answers: calibration, in all and by data set, and what the adapter costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from string import ascii_uppercase
from typing import Any

from selfrag.evaluation.intervals import NONE, mean
from selfrag.evaluation.metrics.classification import Bin, brier, calibration_error, reliability
from selfrag.experiments.intrinsics.measures import area, published_table
from selfrag.experiments.intrinsics.subjects import PUBLISHED, Subject, ask
from selfrag.experiments.report_tables import Section, Table, percent, share
from selfrag.intrinsics.contract import ChatPrompt, Completion, Failed, Request, Slot
from selfrag.intrinsics.sentences import last_query
from selfrag.intrinsics.state import Message, State
from selfrag.training.intrinsics.certainty import Answered, Own, Question, confidences, of_other_data_sets

UNCERTAINTY_PART = "uncertainty"
UNCERTAINTY_HEAD = ("system", "ECE of the decile", "of the expectation", "adaptive bins", "Brier", "AUC", "undefined")


def evaluate_certainty(
    answers: Sequence[Own], subjects: Sequence[Subject], share_right: float | None, seed: int
) -> Section:
    """Measure every subject on the model's own answers, after the answer and before it, in all and by data set.

    `answers` are of the base model, held out; `share_right` is how often it was right in training, for the baseline
    that always says that. Another baseline is a calibrator of the other data sets, as for a task that nobody has
    calibrated.
    """
    right = [float(one.is_right) for one in answers]
    constant = sum(right) / len(right) if share_right is None else share_right
    chosen = [one for one in answers if isinstance(one, Answered)]
    own = [c if isinstance(a, Answered) else None for a, c in zip(answers, confidences(answers).tolist(), strict=True)]
    base = {
        "base: probability of its answer": own,
        "base: calibrated on the other data sets": of_other_data_sets(answers),
    }
    tables, diagrams = list[Table](), dict[str, tuple[Bin, ...]]()
    figures: dict[str, dict[str, Any]] = {}
    items: list[dict[str, Any]] = [
        {"id": one.id, "right": one.is_right, "own probability": p} for one, p in zip(answers, own, strict=True)
    ]
    for moment in ("after", "before"):
        lines, sets = [], []
        systems: dict[str, tuple[Sequence[float | None], Sequence[float | None]]] = {
            "always the training accuracy": ([constant] * len(answers),) * 2,
        } | {name: (values, values) for name, values in base.items() if set(values) != {None}}
        states = [one.state(after=moment == "after") for one in answers]
        for subject in subjects:
            results = ask(subject, UNCERTAINTY_PART, states)
            systems[subject.name] = [one.decile for one in results], [one.certainty for one in results]
            for item, result in zip(items, results, strict=True):
                item[f"{subject.name}, {moment}"] = result.certainty
        for system, (deciles, certainties) in systems.items():
            line, values, bins = _certainty_line(system, right, deciles, certainties, seed)
            lines.append(line)
            by_set = _by_data_set(answers, right, deciles, seed)
            figures.setdefault(system, {})[moment] = values | {"ece_by_data_set": by_set}
            if len(by_set) > 1:
                worst = max(by_set, key=lambda name: by_set[name])
                sets.append((system, f"{fmean(by_set.values()):.3f}", f"{by_set[worst]:.3f}", worst))
            if moment == "after":
                diagrams[system] = bins
        accuracy = 100 * sum(right) / len(right)
        title = f"Certainty, {moment} the answer ({len(answers)} questions, {accuracy:.1f}% right)"
        tables.append(Table(title, UNCERTAINTY_HEAD, tuple(lines)))
        if sets:
            title = f"Calibration by data set, {moment} the answer ({len({a.dataset for a in answers})} sets)"
            tables.append(Table(title, ("system", "mean ECE", "largest", "of"), tuple(sets)))
    paper = published_table("MMLU, section 3.2", ("mean ECE", "largest"), PUBLISHED["calibration"], digits=3)
    notes = ("AUC: how often a right answer is given more certainty than a wrong one; 0.5 is chance",)
    tables[0] = Table(tables[0].title, UNCERTAINTY_HEAD, tables[0].rows, notes)
    adapted = [one for one in subjects if one.adapters.get(UNCERTAINTY_PART)]
    if adapted and chosen:
        shown, found = _accuracy([one.question for one in chosen], adapted, seed)
        tables.append(shown)
        for system, values in found.items():
            figures.setdefault(system, {})["accuracy"] = values
    return Section(UNCERTAINTY_PART, (*tables, paper), figures, tuple(items), diagrams)


def _certainty_line(
    system: str, right: Sequence[float], deciles: Sequence[float | None], certainties: Sequence[float | None], seed: int
) -> tuple[tuple[str, ...], dict[str, Any], tuple[Bin, ...]]:
    known = [at for at, value in enumerate(certainties) if value is not None]
    truth = [right[at] for at in known]
    expected = [float(certainties[at] or 0.0) for at in known]
    middle = [float(deciles[at] or 0.0) for at in known]
    if not known:
        return (system, *[NONE] * 5, str(len(right))), {"undefined": len(right)}, ()
    found = {
        "ece_decile": calibration_error(middle, truth, seed=seed),
        "ece": calibration_error(expected, truth, seed=seed),
        "ece_adaptive": calibration_error(expected, truth, adaptive=True, seed=seed),
        "brier": brier(expected, truth, seed=seed),
        "auc": area(zip(truth, expected, strict=True), seed),
    }
    undefined = len(right) - len(known)
    values = {name: one.as_dict() for name, one in found.items()} | {"undefined": undefined}
    return (system, *map(share, found.values()), str(undefined)), values, reliability(expected, truth)


def _by_data_set(
    answers: Sequence[Own], right: Sequence[float], deciles: Sequence[float | None], seed: int
) -> dict[str, float]:
    """Expected calibration error of each data set that has a defined certainty (section 3.2 of the paper)."""
    members: dict[str, list[tuple[float, float]]] = {}
    for answered, truth, decile in zip(answers, right, deciles, strict=True):
        if decile is not None:
            members.setdefault(answered.dataset, []).append((decile, truth))
    return {name: calibration_error(*zip(*pairs, strict=True), seed=seed).value for name, pairs in members.items()}


def _accuracy(
    questions: Sequence[Question], adapted: Sequence[Subject], seed: int
) -> tuple[Table, dict[str, dict[str, Any]]]:
    """How often a model chooses the right letter, with an adapter in place and without (section 3.2 of the paper)."""
    found = {"without an adapter": _letters(questions, adapted[0], None)}
    found |= {f"with {one.name}": _letters(questions, one, one.adapters[UNCERTAINTY_PART]) for one in adapted}
    names = sorted({one.dataset for one in questions})
    lines, figures = [], {}
    for system, hits in found.items():
        known = [hit for hit in hits if hit is not None]
        each = [[h for q, h in zip(questions, hits, strict=True) if q.dataset == n and h is not None] for n in names]
        over_sets = mean([fmean(one) for one in each if one], seed=seed)
        accuracy = mean(known, seed=seed)
        lines.append((system, percent(accuracy), percent(over_sets), str(len(hits) - len(known))))
        figures[system] = {"questions": accuracy.as_dict(), "data sets": over_sets.as_dict()}
    title = f"Zero-shot accuracy by letters ({len(questions)} questions, {len(names)} data sets)"
    return Table(title, ("model", "of questions", "mean of data sets", "undefined"), tuple(lines)), figures


def _letters(questions: Sequence[Question], subject: Subject, adapter: str | None) -> list[float | None]:
    """Whether the most probable letter is the right one; None where it could not be asked."""
    requests = [replace(_lettered(question), adapter=adapter) for question in questions]
    found: list[Completion | Failed] = []
    for start in range(0, len(requests), subject.chunk):
        found += subject.executor.run(requests[start : start + subject.chunk])
    return [_hit(question, one) for question, one in zip(questions, found, strict=True)]


def _hit(question: Question, found: Completion | Failed) -> float | None:
    scores = None if isinstance(found, Failed) else next(iter(found.scores), None)
    return None if scores is None else float(max(range(len(scores)), key=scores.__getitem__) == question.right)


def _lettered(question: Question) -> Request:
    letters = ascii_uppercase[: len(question.options)]
    options = (f"{letter}. {option}" for letter, option in zip(letters, question.options, strict=True))
    said = "\n".join([question.question, *options, "Reply with the letter of the right answer."])
    state = State((Message("user", said),))
    return Request(state, ChatPrompt(state.messages), slots=(Slot(tuple(letters), last_query(state)),))
