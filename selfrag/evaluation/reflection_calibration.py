"""Calibrates reflection tokens: how sure a model is of its labels on rows, and the temperatures and biases that fit.

Expected calibration error and temperature scaling: Guo et al. 2017, arXiv 1706.04599. Rows are those of training, with
the label that is right at each place; take rows that the model was not trained on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.common.atomic import write_text, writing
from selfrag.common.errors import EngineError, UserError, require
from selfrag.common.reading import read_json
from selfrag.decoding.segments import read_critique
from selfrag.engines.base import Engine
from selfrag.evaluation.intervals import Estimate, FloatArray, bracketed, mean
from selfrag.evaluation.metrics.classification import calibration_error, plot_reliability, reliability
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import GROUPS, LabelSet, Role
from selfrag.reflection.requests import Generate, Generated, ask, failure_of
from selfrag.reflection.vocabulary import STORED, Scaling, as_record
from selfrag.render.tables import compact
from selfrag.runtime import finish
from selfrag.training.rows import TargetLayout, TrainingRow

FOLDS = 5
PRIOR = 1e-2
"""Weight of the squares of log T and of the biases: where hardly any label is wrong, rows say nothing about T."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One place of a row where a reflection token is due."""

    instruction: str  # of its row; places of one instruction are in the same fold
    judgment: Judgment  # as the model gives it, not calibrated
    right: int  # position of the row's label


@dataclass(frozen=True, slots=True)
class CalibrationFigures:
    """How well the probabilities of a group fit, before and after scaling that was fitted on other instructions."""

    scaling: Scaling  # fitted on all places
    places: int
    loss: tuple[Estimate, Estimate]  # negative log-likelihood of the right label, in nats
    error: tuple[Estimate, Estimate]  # expected calibration error of the most probable label, 0 to 1
    accuracy: tuple[Estimate, Estimate]  # of the most probable label; biases may change it

    @property
    def helps(self) -> bool:
        """Whether scaling lowers the loss; a group that it does not help is left as it is."""
        return self.loss[1].value < self.loss[0].value


def observe(rows: Iterable[TrainingRow], prompting: Prompting, engine: Engine) -> list[Observed]:
    """Read the distribution of each group wherever a row has one of its tokens, after what the row has before it."""
    raw = replace(prompting, vocabulary=prompting.vocabulary.uncalibrated())
    due = list(_due(rows, raw, engine))
    found = []
    for (instruction, labels, right, _), result in zip(due, finish(ask([one[-1] for one in due]), engine), strict=True):
        if not isinstance(result, Generated):
            raise EngineError(f"the engine could not read a row: {failure_of(result)}")
        found.append(Observed(instruction, read_critique(raw.vocabulary, labels, result.watched[0], "row"), right))
    return found


def _due(
    rows: Iterable[TrainingRow], prompting: Prompting, engine: Engine
) -> Iterator[tuple[str, LabelSet, int, Generate]]:
    vocabulary = prompting.vocabulary
    known = {token: (labels, i) for labels in GROUPS for i, token in enumerate(vocabulary.group(labels))}
    layout = TargetLayout(prompting, engine.limits.max_model_len - 1, max_passage=256)
    for row in rows:
        example = layout.example(row)
        for place, label in enumerate(example.labels):
            if label in known:
                request = Generate(example.ids[:place], 1, watch_ids=vocabulary.watch)
                yield row.instruction, *known[label], request


def fit(observed: Sequence[Observed], *, biased: bool) -> Scaling:
    """The scaling of one group that makes the right labels most likely; biases carry how frequent they are in rows."""
    optimize = require("scipy.optimize", extra="eval")
    logs, right = _logs([one.judgment for one in observed]), np.array([one.right for one in observed])
    labels = logs.shape[1] if biased else 0

    def cost(x: FloatArray) -> float:
        logits = logs * math.exp(-x[0]) + (np.append(0.0, x[1:]) if biased else 0.0)
        norm = np.logaddexp.reduce(logits, axis=1)
        loss = np.mean(norm - logits[np.arange(len(right)), right])
        return float(loss + PRIOR * np.square(x).sum())

    bounds = [(-4, 4), *[(-20, 20)] * (labels - 1)]
    x = optimize.minimize(cost, np.zeros(len(bounds)), method="L-BFGS-B", bounds=bounds).x
    return Scaling(math.exp(x[0]), (0.0, *map(float, x[1:])) if biased else ())


def _logs(judgments: Sequence[Judgment]) -> FloatArray:
    return np.asarray(np.log(np.maximum([one.distribution for one in judgments], 1e-12)))


def calibrate(observed: Sequence[Observed], *, biased: bool = False, seed: int = 0) -> dict[Role, CalibrationFigures]:
    """Scalings of all groups, with figures from five folds over the instructions."""
    folds = require("sklearn.model_selection", extra="eval").GroupKFold(FOLDS)
    found: dict[Role, CalibrationFigures] = {}
    for labels in GROUPS:
        own = [one for one in observed if one.judgment.labels == labels]
        if not own:
            continue
        names = [one.instruction for one in own]
        if len(set(names)) < FOLDS:
            raise UserError(f"{labels.role}: {len(set(names))} instructions in the rows; calibration needs {FOLDS}")
        after = [one.judgment for one in own]
        for train, test in folds.split(names, groups=names):
            scaling = fit([own[i] for i in train], biased=biased)
            for i in test:
                after[i] = scaling(own[i].judgment)
        right = [one.right for one in own]
        before, now = (_measured(judged, right, seed) for judged in ([one.judgment for one in own], after))
        found[labels.role] = CalibrationFigures(fit(own, biased=biased), len(own), *zip(before, now, strict=True))
    return found


def _measured(judged: Sequence[Judgment], right: Sequence[int], seed: int) -> tuple[Estimate, Estimate, Estimate]:
    losses = -_logs(judged)[np.arange(len(right)), right]
    sure, hits = confidence(judged, right)
    return mean(losses, seed=seed), calibration_error(sure, hits, seed=seed), mean(hits, seed=seed)


def confidence(judged: Sequence[Judgment], right: Sequence[int]) -> tuple[list[float], list[float]]:
    """Probability of the most probable label of each judgment, and whether it is the right one."""
    return [max(one.distribution) for one in judged], [
        float(one.labels.names[i] == one.label) for one, i in zip(judged, right, strict=True)
    ]


def table(found: Mapping[Role, CalibrationFigures]) -> str:
    """The figures as a Markdown table."""
    head = ["group", "places", "temperature", "loss, nats", "scaled", "ECE, %", "scaled", "accuracy, %", "scaled", ""]
    lines = [
        [str(role), str(one.places), f"{one.scaling.temperature:.2f}"]
        + [f"{value.value:.3f}" for value in one.loss]
        + [bracketed(value) for pair in (one.error, one.accuracy) for value in pair]
        + ["kept" if one.helps else "left out"]
        for role, one in found.items()
    ]
    return compact(head, lines)


def write(observed: Sequence[Observed], found: Mapping[Role, CalibrationFigures], out: Path) -> None:
    """Write `calibration.json`, `calibration.md` and a reliability diagram of each group into `out`."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    write_text(out / "calibration.json", json.dumps(_record(found), indent=2) + "\n")
    write_text(out / "calibration.md", table(found))
    for role, figures in found.items():
        own = [one for one in observed if one.judgment.role == role]
        right = [one.right for one in own]
        curves = {"as given": [one.judgment for one in own], "scaled": [figures.scaling(one.judgment) for one in own]}
        bins = {name: reliability(*confidence(judged, right)) for name, judged in curves.items()}
        plot_reliability(bins, out / f"reliability-{role}.svg")


def _record(found: Mapping[Role, CalibrationFigures]) -> dict[str, Any]:
    return as_record({role: one.scaling for role, one in found.items() if one.helps})


def settings_file(folder: Path) -> Path:
    """The file of a checkpoint, or of an adapter, that holds scalings."""
    files = [folder / name for name in ("tokenizer_config.json", "reflection.json")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise UserError(
            f"{folder} holds neither tokenizer_config.json of a checkpoint nor reflection.json of an adapter"
        )
    if not isinstance(read_json(file), dict):
        raise UserError(f"{file} holds no settings")
    return file


def store(found: Mapping[Role, CalibrationFigures], folder: Path) -> Path:
    """Put the scalings into a checkpoint, or into an adapter, whose merged checkpoint has them. Returns the file."""
    file = settings_file(folder)
    before = read_json(file)
    write_text(file, json.dumps(before | {STORED: _record(found)}, indent=2, ensure_ascii=False) + "\n")
    return file
