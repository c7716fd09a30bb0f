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

from selfrag.decoding.segments import read_critique
from selfrag.decoding.token_writer import DecodingModel
from selfrag.evaluation.intervals import FloatArray, bracketed, mean
from selfrag.evaluation.metrics.classification import (
    calibration_error,
    plot_reliability,
    reliability,
)
from selfrag.interface import (
    GROUPS,
    ISSUP,
    ISUSE,
    RETRIEVE,
    Engine,
    EngineError,
    Estimate,
    Generate,
    Generated,
    Judge,
    JudgeInput,
    Judgment,
    LabelSet,
    Message,
    Passage,
    Prompting,
    Role,
    UserError,
    ask,
    count_of,
    finish,
    read_json,
    require,
    write_text,
    writing,
)
from selfrag.judges.reflection_prompts import judge_name
from selfrag.reflection.requests import failure_of
from selfrag.reflection.vocabulary import STORED, Scaling, as_record
from selfrag.render.tables import markdown_table
from selfrag.training.rows import TargetEvidence, TargetLayout, TargetText, TrainingRow

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
    # negative log-likelihood of the right label, in nats
    loss: tuple[Estimate, Estimate]
    # expected calibration error of the most probable label, 0 to 1
    error: tuple[Estimate, Estimate]
    # of the most probable label; biases may change it
    accuracy: tuple[Estimate, Estimate]

    @property
    def helps(self) -> bool:
        """Return whether scaling lowers the loss; a group that it does not help is left as it is."""
        return self.loss[1].value < self.loss[0].value


def observe(
    rows: Iterable[TrainingRow], model: DecodingModel, engine: Engine
) -> list[Observed]:
    """Read the distribution of each group wherever a row has one of its tokens, after what the row has before it."""
    if isinstance(model, Prompting):
        return _observe_tokens(rows, model, engine)
    return _observe_judges(rows, model.uncalibrated().judges, engine)


def _observe_judges(
    rows: Iterable[TrainingRow], judges: Mapping[str, Judge], engine: Engine
) -> list[Observed]:
    """Ask the judges of a chat model wherever a row has a token of their group."""
    # instruction and label
    right_labels: dict[str, list[tuple[str, int]]] = {name: [] for name in judges}
    inputs: dict[str, list[JudgeInput]] = {name: [] for name in judges}
    for row in rows:
        for name, state, label in _judged_places(row):
            right_labels[name].append((row.instruction, label))
            inputs[name].append(state)
    observed = []
    for name, judge in judges.items():
        reflections = finish(judge.judge(inputs[name]), engine)
        for (instruction, label), reflection in zip(
            right_labels[name], reflections, strict=True
        ):
            if not reflection.judgments:
                raise EngineError(
                    f"the engine could not read a row: {reflection.reason}"
                )
            observed.append(Observed(instruction, reflection.judgments[0], label))
    return observed


def _judged_places(row: TrainingRow) -> Iterator[tuple[str, JudgeInput, int]]:
    """Yield for each token of a row the judge of its group, what it looks at there, and the position of the label."""
    question = Message("user", row.instruction)
    passages: tuple[Passage, ...] = ()
    before, segment = "", ""
    for part in row.target:
        if isinstance(part, TargetEvidence):
            passages = (part.passage,)
        elif isinstance(part, TargetText):
            segment += part.text
        elif part.token in _LABELS:
            labels, label = _LABELS[part.token]
            judged = segment if labels == ISSUP else before + segment
            is_blank = not judged.strip()
            turns = [question]
            if not is_blank:
                turns.append(Message("assistant", judged))
            name = judge_name(labels.role)
            if labels == RETRIEVE:
                if not is_blank:
                    name = judge_name("retrieve_later")
                before, segment = before + segment, ""
            if not is_blank or labels not in (ISSUP, ISUSE):
                yield name, JudgeInput(tuple(turns), passages), label


_LABELS = {
    token: (labels, label)
    for labels in GROUPS
    for label, token in enumerate(labels.tokens)
}


def _observe_tokens(
    rows: Iterable[TrainingRow], prompting: Prompting, engine: Engine
) -> list[Observed]:
    raw = replace(prompting, vocabulary=prompting.vocabulary.uncalibrated())
    vocabulary = raw.vocabulary
    known = {
        token: (labels, place)
        for labels in GROUPS
        for place, token in enumerate(vocabulary.group(labels))
    }
    layout = TargetLayout(raw, engine.limits.max_model_len - 1, max_passage=256)
    due: list[tuple[str, LabelSet, int]] = []
    requests = []
    for row in rows:
        example = layout.example(row)
        for place, label in enumerate(example.labels):
            if label in known:
                due.append((row.instruction, *known[label]))
                prompt = example.ids[:place]
                requests.append(Generate(prompt, 1, watch_ids=vocabulary.watch))
    results = finish(ask(requests), engine)
    observed = []
    for (instruction, labels, right), result in zip(due, results, strict=True):
        if not isinstance(result, Generated):
            raise EngineError(f"the engine could not read a row: {failure_of(result)}")
        judgment = read_critique(vocabulary, labels, result.watched[0], "row")
        observed.append(Observed(instruction, judgment, right))
    return observed


def fit(observed: Sequence[Observed], *, biased: bool) -> Scaling:
    """Fit the scaling of one group that makes the right labels most likely; biases carry their frequency in rows."""
    optimize = require("scipy.optimize", extra="eval")
    logs = _logs([place.judgment for place in observed])
    right = np.array([place.right for place in observed])
    bounds = [(-4, 4)]  # of log T, and of the biases of all labels but the first
    if biased:
        bounds += [(-20, 20)] * (logs.shape[1] - 1)

    def cost(x: FloatArray) -> float:
        logits = logs * math.exp(-x[0])
        if biased:
            logits = logits + np.append(0.0, x[1:])
        norm = np.logaddexp.reduce(logits, axis=1)
        loss = np.mean(norm - logits[np.arange(len(right)), right])
        return float(loss + PRIOR * np.square(x).sum())

    x = optimize.minimize(
        cost, np.zeros(len(bounds)), method="L-BFGS-B", bounds=bounds
    ).x
    biases: tuple[float, ...] = ()
    if biased:
        biases = (0.0, *map(float, x[1:]))
    return Scaling(math.exp(x[0]), biases)


def _logs(judgments: Sequence[Judgment]) -> FloatArray:
    return np.asarray(
        np.log(np.maximum([judgment.distribution for judgment in judgments], 1e-12))
    )


def calibrate(
    observed: Sequence[Observed], *, biased: bool = False
) -> dict[Role, CalibrationFigures]:
    """Return the scalings of all groups, with figures from five folds over the instructions."""
    folds = require("sklearn.model_selection", extra="eval").GroupKFold(FOLDS)
    figures: dict[Role, CalibrationFigures] = {}
    for labels in GROUPS:
        places = [place for place in observed if place.judgment.labels == labels]
        if not places:
            continue
        names = [place.instruction for place in places]
        if len(set(names)) < FOLDS:
            raise UserError(
                f"{labels.role}: {count_of(len(set(names)), 'instructions')} in the rows; calibration needs {FOLDS}"
            )
        before = [place.judgment for place in places]
        after = list(before)
        for train, test in folds.split(names, groups=names):
            scaling = fit([places[i] for i in train], biased=biased)
            for i in test:
                after[i] = scaling(before[i])
        right = [place.right for place in places]
        pairs = zip(_measure(before, right), _measure(after, right), strict=True)
        figures[labels.role] = CalibrationFigures(
            fit(places, biased=biased), len(places), *pairs
        )
    return figures


def _measure(
    judged: Sequence[Judgment], right: Sequence[int]
) -> tuple[Estimate, Estimate, Estimate]:
    losses = -_logs(judged)[np.arange(len(right)), right]
    sure, hits = confidence(judged, right)
    return mean(losses), calibration_error(sure, hits), mean(hits)


def confidence(
    judged: Sequence[Judgment], right: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Return the probability of the most probable label of each judgment, and whether it is the right one."""
    sure, hits = [], []
    for judgment, place in zip(judged, right, strict=True):
        sure.append(max(judgment.distribution))
        hits.append(float(judgment.labels.names[place] == judgment.label))
    return sure, hits


def table(figures: Mapping[Role, CalibrationFigures]) -> str:
    """Return the figures as a Markdown table."""
    head = [
        "group",
        "places",
        "temperature",
        "loss, nats",
        "scaled",
        "ECE, %",
        "scaled",
        "accuracy, %",
        "scaled",
        "",
    ]
    lines = []
    for role, group in figures.items():
        before, after = group.loss
        line = [str(role), str(group.places), f"{group.scaling.temperature:.2f}"]
        line += [
            f"{before.value:.3f}",
            f"{after.value:.3f}",
            *map(bracketed, (*group.error, *group.accuracy)),
        ]
        lines.append([*line, "kept" if group.helps else "left out"])
    return markdown_table(head, lines)


def write(
    observed: Sequence[Observed], figures: Mapping[Role, CalibrationFigures], out: Path
) -> None:
    """Write `calibration.json`, `calibration.md` and a reliability diagram of each group into `out`."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    write_text(out / "calibration.json", json.dumps(_record(figures), indent=2) + "\n")
    write_text(out / "calibration.md", table(figures))
    for role, group in figures.items():
        places = [place for place in observed if place.judgment.role == role]
        right = [place.right for place in places]
        judgments = [place.judgment for place in places]
        bins = {
            "as given": reliability(*confidence(judgments, right)),
            "scaled": reliability(
                *confidence(list(map(group.scaling, judgments)), right)
            ),
        }
        plot_reliability(bins, out / f"reliability-{role}.svg")


def _record(figures: Mapping[Role, CalibrationFigures]) -> dict[str, Any]:
    return as_record(
        {role: group.scaling for role, group in figures.items() if group.helps}
    )


def settings_file(folder: Path) -> Path:
    """Return the file of a checkpoint, or of an adapter, that holds scalings."""
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        file = folder / "reflection.json"
    if not file.is_file():
        raise UserError(
            f"{folder} holds neither tokenizer_config.json of a checkpoint nor reflection.json of an adapter"
        )
    if not isinstance(read_json(file), dict):
        raise UserError(f"{file} holds no settings")
    return file


def store(figures: Mapping[Role, CalibrationFigures], folder: Path) -> Path:
    """Put the scalings into a checkpoint, or into an adapter, whose merged checkpoint has them. Returns the file."""
    file = settings_file(folder)
    before = read_json(file)
    write_text(
        file,
        json.dumps(before | {STORED: _record(figures)}, indent=2, ensure_ascii=False)
        + "\n",
    )
    return file
