"""An evaluation of critics against labelled rows: figures with bootstrap intervals, a report, and a run from files.

A case without a judgment counts as wrong, and is left out of the calibration figures; how many there were is told. A
run that was killed and started again ends with the same figures: what models judged is in a journal until then.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from critic.baselines import GeneratorCodec, PromptedCodec, majority_critic, tfidf_critic
from critic.case_files import read_labelled, rows_file
from critic.cases import GROUPS, LabelledCase, judgment
from critic.judging import Critic
from critic.student.judge import StudentCritic, load_critic
from critic.tables import markdown
from selfrag.common.atomic import write_json, writing
from selfrag.common.errors import UserError
from selfrag.common.progress import Progress
from selfrag.common.runs import RunLog
from selfrag.evaluation.intervals import Estimate, FloatArray, bootstrap, mean
from selfrag.evaluation.metrics.classification import BINS, equal_bins, error_statistic, macro_effective, macro_f1
from selfrag.reflection.judgment import Judgment

HUMAN = "human"
"""`label_source` of rows that a person judged."""


@dataclass(frozen=True, slots=True)
class CriticFigures:
    """Figures of one group, or of a part of it."""

    group: str
    accuracy: Estimate
    macro_f1: Estimate  # over the labels that occur in gold
    ece: Estimate  # expected calibration error: mean distance of confidence and accuracy over `BINS`
    brier: Estimate  # mean squared distance of the distribution from the gold label, summed over labels; 0 to 2
    coverage: float  # mean probability mass on the labels
    confusion: tuple[tuple[int, ...], ...]  # by gold label (rows) and judged label (columns; the last: no judgment)
    undefined: int  # cases without a judgment

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        named = {name: getattr(self, name).as_dict() for name in ("accuracy", "macro_f1", "ece", "brier")}
        return {
            **named,
            "coverage": None if self.coverage != self.coverage else self.coverage,
            "labels": list(GROUPS[self.group].names),
            "confusion": [list(row) for row in self.confusion],
            "undefined": self.undefined,
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one critic."""

    groups: Mapping[str, CriticFigures]  # group -> figures on all its rows
    parts: Mapping[str, Mapping[str, CriticFigures]]  # group -> `human`, `derived` or `dataset/rule` -> figures
    seconds: float = 0.0  # taken by the judging
    judgments: Sequence[Judgment | None] = field(default=(), repr=False)  # one a row, in the order of the rows
    shortened: int = 0  # rows of which a prompt could not hold every part whole

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, without single judgments; `shortened` only where there are such rows."""
        return {
            "groups": {group: found.as_dict() for group, found in self.groups.items()},
            "parts": {
                group: {name: found.as_dict() for name, found in parts.items()} for group, parts in self.parts.items()
            },
            "seconds": self.seconds,
            **({"shortened": self.shortened} if self.shortened else {}),
        }


def evaluate(critic: Critic, rows: Sequence[LabelledCase], *, seed: int = 0) -> Evaluation:
    """Let a critic judge all rows, of any groups, and compare with their labels; `seed` is of the intervals."""
    started = time.perf_counter()
    judgments = critic.judge([row.case for row in rows])
    return compare(rows, judgments, seed=seed, seconds=time.perf_counter() - started)


def compare(
    rows: Sequence[LabelledCase], judgments: Sequence[Judgment | None], *, seed: int = 0, seconds: float = 0.0
) -> Evaluation:
    """Figures of judgments that were made already."""
    members: dict[str, dict[str, list[int]]] = {group: defaultdict(list) for group in GROUPS}
    for number, row in enumerate(rows):
        source = HUMAN if row.label_source == HUMAN else "derived"
        for part in ("", source, f"{row.dataset}/{row.rule}"):
            members[row.case.group][part].append(number)
    found = {
        group: {
            part: figures([rows[n] for n in numbers], [judgments[n] for n in numbers], seed=seed)
            for part, numbers in sorted(parts.items())
        }
        for group, parts in members.items()
        if parts
    }
    groups = {group: parts.pop("") for group, parts in found.items()}
    return Evaluation(groups, found, seconds, tuple(judgments))


def figures(rows: Sequence[LabelledCase], judgments: Sequence[Judgment | None], *, seed: int = 0) -> CriticFigures:
    """Figures of rows of one group, at least one; `seed` is of the intervals."""
    groups = {row.case.group for row in rows}
    if len(groups) != 1 or len(rows) != len(judgments):
        raise ValueError(f"{len(rows)} rows of {len(groups)} groups with {len(judgments)} judgments")
    (group,) = groups
    names = GROUPS[group].names
    gold = np.array([names.index(row.label) for row in rows])
    judged = np.array([len(names) if j is None else names.index(j.label) for j in judgments])
    known = [(j.distribution, y) for j, y in zip(judgments, gold.tolist(), strict=True) if j is not None]
    probabilities = np.array([p for p, _ in known], dtype=np.float64).reshape(-1, len(names))
    truth = np.eye(len(names))[[y for _, y in known]].reshape(-1, len(names))
    is_gold, is_judged = np.eye(len(names))[gold], np.eye(len(names) + 1)[judged][:, : len(names)]

    def f1(counts: FloatArray) -> FloatArray:
        """Over the labels that a sample's gold holds; a label never judged has F1 0."""
        return macro_f1(counts @ (is_gold * is_judged), counts @ is_gold, counts @ is_judged)

    confusion = np.zeros((len(names), len(names) + 1), dtype=int)
    np.add.at(confusion, (gold, judged), 1)
    return CriticFigures(
        group,
        mean([float(right) for right in gold == judged], seed=seed),
        bootstrap(len(rows), f1, seed, effective=macro_effective(is_gold)),
        bootstrap(len(known), calibration_error(probabilities, truth), seed),
        mean(
            [float(distance) for distance in ((probabilities - truth) ** 2).sum(axis=1)], seed=seed, bounds=(0.0, 2.0)
        ),
        float(np.mean([j.coverage for j in judgments if j is not None])) if known else float("nan"),
        tuple(tuple(row) for row in confusion.tolist()),
        len(rows) - len(known),
    )


def calibration_error(
    probabilities: FloatArray, truth: FloatArray, bins: int = BINS
) -> Callable[[FloatArray], FloatArray]:
    """Expected calibration error of bootstrap samples, from distributions and gold [n, labels], one-hot."""
    if not len(probabilities):
        return error_statistic(np.empty(0), np.empty(0, dtype=np.intp))
    chosen, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    return error_statistic(confidence - truth[np.arange(len(truth)), chosen], equal_bins(confidence, bins))


PAPER: Mapping[str, Mapping[str, float]] = {
    "Llama2-7B (paper)": {"Retrieve": 0.938, "IsRel": 0.802, "IsSup": 0.935, "IsUse": 0.735},
    "FLAN-3B (paper)": {"Retrieve": 0.856, "IsRel": 0.820, "IsSup": 0.731, "IsUse": 0.721},
}
"""Base model -> group -> accuracy of the paper's critics against GPT-4's labels (arXiv 2310.11511, Figure 4).

Another measure, and other data, than accuracy against people: read them beside ours, not against ours.
"""

NamedEvaluations = Mapping[str, Evaluation]


def report(evaluations: NamedEvaluations, main: str) -> str:
    """The whole report: name of a critic -> its evaluation, all on the same rows; `main` is shown in full."""
    shown = evaluations[main]
    groups = [group for group in GROUPS if group in shown.groups]
    paper = [(name, *[f"{known[group]:.3f}" for group in groups]) for name, known in PAPER.items()]
    header = ("critic", *groups)
    cut = [f"{name} {one.shortened} of {len(one.judgments)}" for name, one in evaluations.items() if one.shortened]
    sections = [
        "## Accuracy, all rows\n",
        markdown(header, [*_across(evaluations, groups, None, "accuracy"), *paper]),
        *([f"Rows with a part shortened to fit the prompt: {'; '.join(cut)}.\n"] if cut else []),
        "## Accuracy, rows labelled by people\n",
        markdown(header, _across(evaluations, groups, HUMAN, "accuracy")),
        "## Macro-F1, all rows\n",
        markdown(header, _across(evaluations, groups, None, "macro_f1")),
        "## Macro-F1, rows labelled by people\n",
        markdown(header, _across(evaluations, groups, HUMAN, "macro_f1")),
        f"## {main} in full\n",
        _full(shown, groups),
    ]
    for group in groups:
        names = GROUPS[group].names
        rows = [(name, *row) for name, row in zip(names, shown.groups[group].confusion, strict=True)]
        sections += [f"### {group}: judged (columns) against gold (rows)\n", markdown(("gold", *names, "none"), rows)]
        sections += [f"### {group}: by source of the label, data set and rule\n", _parts(evaluations, main, group)]
    return "\n".join(sections)


def _across(evaluations: NamedEvaluations, groups: list[str], part: str | None, figure: str) -> list[tuple[str, ...]]:
    """One figure of every critic in every group, or in a part of it."""
    rows = []
    for name, one in evaluations.items():
        found = [one.groups.get(group) if part is None else one.parts.get(group, {}).get(part) for group in groups]
        rows.append((name, *["-" if f is None else _interval(getattr(f, figure)) for f in found]))
    return rows


def _full(evaluation: Evaluation, groups: list[str]) -> str:
    rows = []
    for group in groups:
        found = evaluation.groups[group]
        estimates = (found.accuracy, found.macro_f1, found.ece, found.brier)
        rows.append((group, found.accuracy.n, *map(_interval, estimates), f"{found.coverage:.3f}", found.undefined))
    return markdown(("group", "rows", "accuracy", "macro-F1", "ECE", "Brier", "coverage", "no judgment"), rows)


def _parts(evaluations: NamedEvaluations, main: str, group: str) -> str:
    others = {name: one.parts.get(group, {}) for name, one in evaluations.items() if name != main}
    rows = []
    for part, found in evaluations[main].parts[group].items():
        rivals = [parts[part].accuracy.value if part in parts else None for parts in others.values()]
        cells = ["-" if rival is None else f"{rival:.3f}" for rival in rivals]
        rows.append((part, found.accuracy.n, _interval(found.accuracy), f"{found.brier.value:.3f}", *cells))
    return markdown(("part", "rows", main, "Brier", *others), rows)


def _interval(estimate: Estimate) -> str:
    if not estimate.defined:
        return "-"
    if estimate.low != estimate.low:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


CHUNK = 16
"""Cases judged at once: enough to fill a small batch, few enough that a kill costs a minute on a slow machine. Every
run makes the same chunks, because a model's numbers may shift with what shares its batch."""

PROMPTED = "untrained base, prompted"
GENERATOR = "generator, by its tokens"
MAJORITY = "majority label"
TFIDF = "tf-idf + logistic regression"


@dataclass(frozen=True, slots=True)
class EvaluationSubjects:
    """What is evaluated; at least one."""

    critic: str | Path | None = None  # directory or hub name of a trained critic
    base: str | Path | None = None  # its base checkpoint (likewise), asked with the teacher's prompt
    train: Path | None = None  # labelled rows, or a data folder, for the baselines that count
    engine: str | None = None  # of the models; None for the best one installed
    generator: str | Path | None = None  # directory or hub name of a model with reflection tokens

    def __post_init__(self) -> None:
        if self.critic is None and self.base is None and self.train is None and self.generator is None:
            raise UserError("nothing to evaluate: give a critic, a generator, a base model or training rows")

    def folders(self) -> dict[str, Path]:
        """Folders of the models, fetched where they are named on the hub."""
        from critic.student.judge import resolve_critic
        from selfrag.loading import resolve_model

        resolving = {"critic": resolve_critic, "base": resolve_model, "generator": resolve_model}
        given = {name: getattr(self, name) for name in resolving}
        return {name: resolving[name](model) for name, model in given.items() if model is not None}


Chunks: TypeAlias = dict[tuple[str, int], Mapping[str, Any]]
"""What the journal holds of a critic's chunk, by name and number: `seconds` that it took, `shortened` cases, and the
`scores` of each case: distribution and coverage, or None where there is no judgment."""


def _take(chunks: Chunks, record: Mapping[str, Any]) -> None:
    scores = [None if one is None else (tuple(map(float, one[0])), float(one[1])) for one in record["scores"]]
    known = {"seconds": float(record["seconds"]), "shortened": int(record["shortened"]), "scores": scores}
    chunks[str(record["critic"]), int(record["chunk"])] = known


def run_evaluation(
    rows_path: Path,
    subjects: EvaluationSubjects,
    *,
    out: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Evaluation]:
    """Evaluate on a file of labelled rows; `say` is told what is done next, `seed` is of the intervals.

    `out` gets figures, manifest and every single judgment as JSON, again after each critic. Until the last one is done,
    `OUT.journal` holds what models judged, for the same evaluation started again.

    Returns:
        Name of a critic -> its evaluation; the trained one first.
    """
    rows = list(read_labelled(rows_path, judgeable=True))
    train = None if subjects.train is None else list(read_labelled(rows_file(subjects.train)))
    for path, read in ((rows_path, rows), (subjects.train, train)):
        if read == []:
            raise UserError(f"{path} holds no rows")
    # Fitted first: rows that nothing can be fitted to are better named before a model has judged for an hour.
    fitted: dict[str, Critic] = {} if train is None else {TFIDF: tfidf_critic(train), MAJORITY: majority_critic(train)}
    folders = subjects.folders()
    about: dict[str, Any] = {}
    if out is not None:
        if out.is_dir():
            raise UserError(f"--out {out} is a folder; name a file")
        with writing(out):  # better said before an hour of judging
            out.parent.mkdir(parents=True, exist_ok=True)
        about = _manifest(rows_path, subjects, folders, seed)
    found: dict[str, Evaluation] = {}
    chunks: Chunks = {}
    with _journal(out, about, chunks) as journal:
        waiting: list[tuple[str, Callable[[], Evaluation]]] = [
            *((name, partial(_asked, name, opened, rows, chunks, journal, seed)) for name, opened in _models(subjects)),
            *((name, partial(evaluate, critic, rows, seed=seed)) for name, critic in fitted.items()),
        ]
        for name, evaluation in waiting:
            say(f"{name}: {len(rows)} cases")
            found[name] = evaluation()
            if out is not None:
                critics = {name: one.as_dict() for name, one in found.items()}
                judgments = {name: _by_id(rows, one.judgments) for name, one in found.items()}
                write_json(out, {"manifest": about, "critics": critics, "judgments": judgments})
    return found


def _models(subjects: EvaluationSubjects) -> Iterator[tuple[str, Callable[[], StudentCritic]]]:
    if subjects.critic is not None:
        yield Path(subjects.critic).name, partial(load_critic, subjects.critic, subjects.engine)
    if subjects.base is not None:
        yield PROMPTED, partial(_otherwise, subjects.base, subjects.engine, PromptedCodec)
    if subjects.generator is not None:
        yield GENERATOR, partial(_otherwise, subjects.generator, subjects.engine, GeneratorCodec)


def _otherwise(model: str | Path, engine: str | None, kind: type[PromptedCodec | GeneratorCodec]) -> StudentCritic:
    """A model that is no critic, asked in its own way."""
    from selfrag.engines import load_engine
    from selfrag.loading import load_tokenizer, resolve_model

    directory = resolve_model(model)
    codec = kind.from_tokenizer(load_tokenizer(directory))
    return StudentCritic(load_engine(engine, directory, max_model_len=codec.max_length), codec, exact=True)


def _asked(
    name: str,
    opened: Callable[[], StudentCritic],
    rows: list[LabelledCase],
    chunks: Chunks,
    journal: RunLog | None,
    seed: int,
) -> Evaluation:
    """The evaluation of a model, asked about those chunks only that are not known yet; shows its progress."""
    cases = [row.case for row in rows]
    parts = [cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK)]
    missing = [number for number in range(len(parts)) if (name, number) not in chunks]
    if missing:
        done = len(cases) - sum(len(parts[number]) for number in missing)
        with opened() as critic, Progress("evaluation", "case", len(cases), done) as progress:
            for number in missing:
                started = time.perf_counter()
                judged = critic.judge(parts[number])
                progress.advance(len(parts[number]))
                record = {
                    "critic": name,
                    "chunk": number,
                    "seconds": time.perf_counter() - started,
                    "shortened": critic.shortened(parts[number]),
                    "scores": [None if one is None else (one.distribution, one.coverage) for one in judged],
                }
                _take(chunks, record)
                if journal is not None:
                    journal.append(record)
    found = [chunks[name, number] for number in range(len(parts))]
    scores = [one for chunk in found for one in chunk["scores"]]
    judgments = [
        None if one is None else judgment(case, one[0], number, one[1])
        for number, (case, one) in enumerate(zip(cases, scores, strict=True))
    ]
    evaluation = compare(rows, judgments, seed=seed, seconds=sum(chunk["seconds"] for chunk in found))
    return replace(evaluation, shortened=sum(chunk["shortened"] for chunk in found))


@contextmanager
def _journal(out: Path | None, about: Mapping[str, Any], chunks: Chunks) -> Iterator[RunLog | None]:
    """What an evaluation that was interrupted left beside `out`; goes when all figures are written."""
    if out is None or not about["models"]:
        yield None
        return
    from critic.teacher.forms import OWN
    from selfrag.engines import choose_engine

    # All that decides what the models judge: not the training rows and the seed, whose figures are made again.
    engine = about["engine"] or choose_engine()[0]
    identity = {"rows": [*about["rows"].values()], **about["models"], "engine": engine, "prompt": OWN.fingerprint}
    path = out.with_name(f"{out.name}.journal")
    take, otherwise = partial(_take, chunks), "remove it to start over"
    with RunLog(path, {**identity, "chunk": CHUNK}, take, otherwise=otherwise) as journal:
        yield journal
    path.unlink(missing_ok=True)


def _manifest(rows_path: Path, subjects: EvaluationSubjects, folders: Mapping[str, Path], seed: int) -> dict[str, Any]:
    from selfrag.common.provenance import commit, machine, model_files, sha256

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "seed": seed,
        "engine": subjects.engine,
        "rows": {rows_path.name: sha256(rows_path)},
        "train": None if subjects.train is None else sha256(rows_file(subjects.train)),
        "models": {name: model_files(folder) for name, folder in folders.items()},
    }


def _by_id(rows: list[LabelledCase], judgments: Sequence[Judgment | None]) -> dict[str, Any]:
    pairs = zip(rows, judgments, strict=True)
    return {row.id: None if judgment is None else judgment.as_dict()["distribution"] for row, judgment in pairs}
