"""Certainty of the model's own answers: calibration error, Brier score, and whether it tells right from wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from selfrag.evaluation.intervals import NONE, pooled_auc
from selfrag.evaluation.metrics.calibration import Bin, brier, calibration_error, reliability
from selfrag.experiments.intrinsics.published import CALIBRATION
from selfrag.experiments.intrinsics.section import Section, Table, given, share
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.intrinsics.state import State
from selfrag.intrinsics.training.calibrators import top_probability
from selfrag.intrinsics.training.certainty import conversation
from selfrag.intrinsics.training.own_answers import Answered

NAME = "uncertainty"
HEAD = ("system", "ECE of the decile", "of the expectation", "adaptive bins", "Brier", "AUC", "undefined")


def evaluate(answers: Sequence[Answered], subjects: Sequence[Subject], share_right: float | None, seed: int) -> Section:
    """Measure every subject on the model's own answers, after the answer and before it.

    Args:
        answers: of the base model, held out.
        subjects: what says how certain they are.
        share_right: how often the model was right in training, for the baseline that always says that.
        seed: of the intervals.
    """
    right = [float(one.is_right) for one in answers]
    constant = sum(right) / len(right) if share_right is None else share_right
    own = top_probability([one.logprobs for one in answers], 1.0).tolist()
    tables, diagrams = list[Table](), dict[str, tuple[Bin, ...]]()
    figures: dict[str, dict[str, Any]] = {}
    items: list[dict[str, Any]] = [
        {"id": one.id, "right": one.is_right, "own probability": p} for one, p in zip(answers, own, strict=True)
    ]
    for moment in ("after", "before"):
        lines = []
        systems: dict[str, tuple[Sequence[float | None], Sequence[float | None]]] = {
            "always the training accuracy": ([constant] * len(answers),) * 2,
            "base: probability of its answer": (own, own),
        }
        states = [State(conversation(one, after=moment == "after")) for one in answers]
        for subject in subjects:
            results = [subject.result(NAME, found) for found in subject.ask(NAME, states)]
            systems[subject.name] = [one.decile for one in results], [one.certainty for one in results]
            for item, result in zip(items, results, strict=True):
                item[f"{subject.name}, {moment}"] = result.certainty
        for system, (deciles, certainties) in systems.items():
            line, values, bins = _line(system, right, deciles, certainties, seed)
            lines.append(line)
            figures.setdefault(system, {})[moment] = values
            if moment == "after":
                diagrams[system] = bins
        accuracy = 100 * sum(right) / len(right)
        title = f"Certainty, {moment} the answer ({len(answers)} questions, {accuracy:.1f}% right)"
        tables.append(Table(title, HEAD, tuple(lines)))
    published = Table(
        "Published: MMLU, section 3.2",
        ("system", "mean ECE", "largest"),
        tuple((system, *given(*values, digits=3)) for system, values in CALIBRATION.items()),
    )
    notes = ("AUC: how often a right answer is given more certainty than a wrong one; 0.5 is chance",)
    tables[0] = Table(tables[0].title, HEAD, tables[0].rows, notes)
    return Section(NAME, (*tables, published), figures, tuple(items), diagrams)


def _line(
    system: str,
    right: Sequence[float],
    deciles: Sequence[float | None],
    certainties: Sequence[float | None],
    seed: int,
) -> tuple[tuple[str, ...], dict[str, Any], tuple[Bin, ...]]:
    known = [at for at, value in enumerate(certainties) if value is not None]
    truth = [right[at] for at in known]
    expected = [float(certainties[at] or 0.0) for at in known]
    middle = [float(deciles[at] or 0.0) for at in known]
    if not known:
        return (system, *[NONE] * 5, str(len(right))), {"undefined": len(right)}, ()
    measures: dict[str, Callable[[], Any]] = {
        "ece_decile": lambda: calibration_error(middle, truth, seed=seed),
        "ece": lambda: calibration_error(expected, truth, seed=seed),
        "ece_adaptive": lambda: calibration_error(expected, truth, adaptive=True, seed=seed),
        "brier": lambda: brier(expected, truth, seed=seed),
        "auc": lambda: pooled_auc(
            [[p] if one else [] for p, one in zip(expected, truth, strict=True)],
            [[] if one else [p] for p, one in zip(expected, truth, strict=True)],
            seed=seed,
        ),
    }
    found = {name: measure() for name, measure in measures.items()}
    undefined = len(right) - len(known)
    values = {name: one.as_dict() for name, one in found.items()} | {"undefined": undefined}
    return (system, *map(share, found.values()), str(undefined)), values, reliability(expected, truth)
