"""An evaluation of critics against labelled rows: figures with bootstrap intervals, a report, and a run from files.

A case without a judgment counts as wrong, and is left out of the calibration figures; how many there were is told. A
run that was killed and started again ends with the same figures: what models judged is in a journal until then.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np

from critic.baselines import (
    GeneratorCodec,
    PromptedCodec,
    majority_critic,
    tfidf_critic,
)
from critic.case_files import read_labelled, rows_file
from critic.cases import GROUPS, Case
from critic.judging import Critic
from critic.released import DATASET
from critic.student.judge import load_critic, student_critic
from critic.subjects import EvaluationSubjects
from selfrag.common.jsonl import JsonObject
from selfrag.common.runs import RunLog
from selfrag.evaluation.failures import Failures
from selfrag.evaluation.intervals import (
    SPELLED,
    bracketed,
    json_values,
    mean,
)
from selfrag.evaluation.metrics.classification import (
    calibration_error,
    classification,
)
from selfrag.evaluation.published import why_left_out
from selfrag.interface import (
    Estimate,
    Judgment,
    JudgmentSource,
    Progress,
    UserError,
    count_of,
    validate,
    write_json,
    writing,
)
from selfrag.render.tables import markdown_table

HUMAN = "human"
"""`label_source` of rows that a person judged."""


@dataclass(frozen=True, slots=True)
class CriticFigures:
    """Figures of one group, or of a part of it."""

    group: str
    accuracy: Estimate
    macro_f1: Estimate  # over the labels that occur in gold
    ece: Estimate  # expected calibration error: mean distance of confidence and accuracy over bins
    brier: Estimate  # mean squared distance of the distribution from the gold label, summed over labels; 0 to 2
    coverage: float  # mean probability mass on the labels
    # by gold label (rows) and judged label (columns; the last: no judgment)
    confusion: tuple[tuple[int, ...], ...]
    undefined: int  # cases without a judgment

    def as_dict(self) -> JsonObject:
        """Return plain values, ready for JSON."""
        return {**json_values(self), "labels": list(GROUPS[self.group].names)}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one critic."""

    groups: Mapping[str, CriticFigures]  # group -> figures on all its rows
    # group -> `human`, `derived` or `dataset/rule` -> figures
    parts: Mapping[str, Mapping[str, CriticFigures]]
    seconds: float = 0.0  # taken by the judging
    # one a row, in the order of the rows
    judgments: Sequence[Judgment | None] = field(default=(), repr=False)
    shortened: int = 0  # rows of which a prompt could not hold every part whole

    def as_dict(self) -> JsonObject:
        """Return plain values, ready for JSON, without single judgments; `shortened` only where there are such rows."""
        record: JsonObject = {
            "groups": json_values(self.groups),
            "parts": json_values(self.parts),
            "seconds": self.seconds,
        }
        if self.shortened:
            return record | {"shortened": self.shortened}
        return record


def evaluate(critic: Critic, rows: Sequence[Case], *, seed: int = 0) -> Evaluation:
    """Let a critic judge all rows, of any groups, and compare with their labels; `seed` is of the intervals."""
    started = time.perf_counter()
    judgments = critic.judge(rows)
    return compare(rows, judgments, seed=seed, seconds=time.perf_counter() - started)


def compare(
    rows: Sequence[Case],
    judgments: Sequence[Judgment | None],
    *,
    seed: int = 0,
    seconds: float = 0.0,
) -> Evaluation:
    """Return the figures of judgments that were made already."""
    # 1. The numbers of the rows of each group, of all its rows ("") and of each part of it.
    members: dict[str, dict[str, list[int]]] = {
        group: defaultdict(list) for group in GROUPS
    }
    for number, row in enumerate(rows):
        source = "derived"
        if row.label_source == HUMAN:
            source = HUMAN
        for part in ("", source, f"{row.dataset}/{row.rule}"):
            members[row.group][part].append(number)
    # 2. Their figures.
    groups: dict[str, CriticFigures] = {}
    parts: dict[str, dict[str, CriticFigures]] = {}
    for group, by_part in members.items():
        for part, numbers in sorted(by_part.items()):
            part_figures = figures(
                [rows[n] for n in numbers], [judgments[n] for n in numbers], seed=seed
            )
            if part:
                parts.setdefault(group, {})[part] = part_figures
            else:
                groups[group] = part_figures
    return Evaluation(groups, parts, seconds, tuple(judgments))


def figures(
    rows: Sequence[Case], judgments: Sequence[Judgment | None], *, seed: int = 0
) -> CriticFigures:
    """Return the figures of rows of one group, at least one; `seed` is of the intervals."""
    (group,) = {row.group for row in rows}
    names = GROUPS[group].names
    # 1. Agreement, over all cases.
    labels = [None if verdict is None else verdict.label for verdict in judgments]
    agreement = classification([row.label for row in rows], labels, names, seed=seed)
    confusion = []
    for gold in names:
        counts = [agreement.confusion.get((gold, said), 0) for said in (*names, None)]
        confusion.append(tuple(counts))
    # 2. Calibration, over the cases with a judgment.
    sure, hits, distances, coverages = (list[float]() for _ in range(4))
    for row, verdict in zip(rows, judgments, strict=True):
        if verdict is None:
            continue
        truth = np.array(names) == row.label
        distances.append(float(((verdict.distribution - truth) ** 2).sum()))
        sure.append(max(verdict.distribution))
        hits.append(float(verdict.label == row.label))
        coverages.append(verdict.coverage)
    return CriticFigures(
        group,
        agreement.accuracy,
        agreement.macro_f1,
        calibration_error(sure, hits, seed=seed),
        mean(distances, seed=seed, bounds=(0.0, 2.0)),
        coverage=float(np.mean(coverages)) if coverages else math.nan,
        confusion=tuple(confusion),
        undefined=agreement.undefined,
    )


def undefined_cases(evaluations: NamedEvaluations) -> list[Failures]:
    """Return the cases without a judgment, by critic and group; they count as wrong."""
    failures = []
    for name, evaluation in evaluations.items():
        for group, measured in evaluation.groups.items():
            if measured.undefined:
                cases = sum(map(sum, measured.confusion))
                reasons = {"no label got any probability": measured.undefined}
                failures.append(Failures(name, group, cases, reasons))
    return failures


PAPER: Mapping[str, Mapping[str, float]] = {
    "Llama2-7B (paper)": {
        "Retrieve": 0.938,
        "IsRel": 0.802,
        "IsSup": 0.935,
        "IsUse": 0.735,
    },
    "FLAN-3B (paper)": {
        "Retrieve": 0.856,
        "IsRel": 0.820,
        "IsSup": 0.731,
        "IsUse": 0.721,
    },
}
"""Base model -> group -> accuracy of the paper's critics against GPT-4's labels (arXiv 2310.11511, Figure 4)."""

NamedEvaluations = Mapping[str, Evaluation]


def _why_left_out(evaluation: Evaluation) -> str:
    """Return why the paper's figures are left out; empty where all rows are the authors' own, labelled by GPT-4."""
    sets, cases = set(), 0
    for group, parts in evaluation.parts.items():
        sets |= {name.partition("/")[0] for name in parts if "/" in name}
        cases += sum(map(sum, evaluation.groups[group].confusion))
    data = "labels of GPT-4" if sets == {DATASET} else ", ".join(sorted(sets))
    return why_left_out("selfrag-4", data, cases, "accuracy")


_shown = partial(bracketed, scale=1, digits=3, form=SPELLED)


def report(evaluations: NamedEvaluations, main: str) -> str:
    """Return the whole report: name of a critic -> its evaluation, all on the same rows; `main` is shown in full."""
    groups = [group for group in GROUPS if group in evaluations[main].groups]
    kinds: list[tuple[str, str | None]] = [("all rows", None)]
    if any(HUMAN in parts for parts in evaluations[main].parts.values()):
        kinds.append(("rows labelled by people", HUMAN))
    sections: list[str] = []
    for title, figure in (("Accuracy", "accuracy"), ("Macro-F1", "macro_f1")):
        for rows, part in kinds:
            lines = _across(evaluations, groups, part, figure)
            is_first = not sections
            left_out = _why_left_out(evaluations[main])
            if is_first and not left_out:
                lines += [
                    (name, *(f"{known[group]:.3f}" for group in groups))
                    for name, known in PAPER.items()
                ]
            sections += [
                f"## {title}, {rows}\n",
                markdown_table(("critic", *groups), lines),
            ]
            if is_first:
                sections += [f"{left_out}.\n"] if left_out else []
                sections += _shortened(evaluations)
    sections += [f"## {main} in full\n", _full(evaluations[main], groups)]
    for group in groups:
        names = GROUPS[group].names
        confusion = zip(names, evaluations[main].groups[group].confusion, strict=True)
        table = markdown_table(
            ("gold", *names, "none"), [(name, *row) for name, row in confusion]
        )
        sections += [f"### {group}: judged (columns) against gold (rows)\n", table]
        sections += [
            f"### {group}: by source of the label, data set and rule\n",
            _parts(evaluations, main, group),
        ]
    return "\n".join(sections)


def _shortened(evaluations: NamedEvaluations) -> Iterator[str]:
    """Yield a line on the critics that could not read every row whole, if there are any."""
    counts = []
    for name, evaluation in evaluations.items():
        if evaluation.shortened:
            counts.append(
                f"{name} {evaluation.shortened} of {len(evaluation.judgments)}"
            )
    if counts:
        yield f"Rows with a part shortened to fit the prompt: {'; '.join(counts)}.\n"


def _across(
    evaluations: NamedEvaluations, groups: list[str], part: str | None, figure: str
) -> list[tuple[str, ...]]:
    """Return one figure of every critic in every group, or in a part of it."""
    rows = []
    for name, evaluation in evaluations.items():
        figures_of: dict[str, CriticFigures | None] = dict(evaluation.groups)
        if part is not None:
            figures_of = {key: by.get(part) for key, by in evaluation.parts.items()}
        cells = [
            _shown(getattr(figures_of.get(group), figure, None)) for group in groups
        ]
        rows.append((name, *cells))
    return rows


def _full(evaluation: Evaluation, groups: list[str]) -> str:
    rows = []
    for group in groups:
        of_group = evaluation.groups[group]
        estimates = (of_group.accuracy, of_group.macro_f1, of_group.ece, of_group.brier)
        cells = (
            *map(_shown, estimates),
            f"{of_group.coverage:.3f}",
            of_group.undefined,
        )
        rows.append((group, of_group.accuracy.n, *cells))
    head = "group,rows,accuracy,macro-F1,ECE,Brier,coverage,no judgment"
    return markdown_table(head.split(","), rows)


def _parts(evaluations: NamedEvaluations, main: str, group: str) -> str:
    rivals = {
        name: rival.parts.get(group, {})
        for name, rival in evaluations.items()
        if name != main
    }
    rows = []
    for part, of_part in evaluations[main].parts[group].items():
        accuracy = of_part.accuracy
        cells = [part, accuracy.n, _shown(accuracy), f"{of_part.brier.value:.3f}"]
        for parts in rivals.values():
            rival = parts.get(part)
            cells.append("-" if rival is None else f"{rival.accuracy.value:.3f}")
        rows.append(cells)
    return markdown_table(("part", "rows", main, "Brier", *rivals), rows)


CHUNK = 16
"""Cases judged at once: enough to fill a small batch, few enough that a kill costs a minute on a slow machine. Every
run makes the same chunks, because a model's numbers may shift with what shares its batch."""

PROMPTED = "untrained base, prompted"
GENERATOR = "generator, by its tokens"
MAJORITY = "majority label"
TFIDF = "tf-idf + logistic regression"


@dataclass(frozen=True, slots=True)
class JudgedChunk:
    """What the journal holds of a chunk of cases that a model has judged."""

    critic: str  # name of the critic
    chunk: int  # number of the chunk
    seconds: float  # that it took
    shortened: int  # cases of which the prompt could not hold every part whole
    # distribution and coverage of each case, None without
    scores: tuple[tuple[tuple[float, ...], float] | None, ...]


JudgedChunks: TypeAlias = dict[tuple[str, int], JudgedChunk]
"""By critic and number."""


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
    # 1. Read the rows, and fit what counts: what is wrong with them is better named before a model judges for an hour.
    rows = _rows(rows_path, read_labelled(rows_path, judgeable=True))
    fitted: dict[str, Critic] = {}
    if subjects.train is not None:
        train = _rows(subjects.train, read_labelled(rows_file(subjects.train)))
        fitted = {TFIDF: tfidf_critic(train), MAJORITY: majority_critic(train)}
    # 2. Find out whether everything is there and can be written.
    folders = subjects.folders()
    about: JsonObject = {}
    if out is not None:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        about = _manifest(rows_path, subjects, folders, seed)
    # 3. Evaluate one critic after the other.
    evaluations: dict[str, Evaluation] = {}
    chunks: JudgedChunks = {}

    def take(record: Mapping[str, Any]) -> None:
        chunk = validate(JudgedChunk, record)
        chunks[chunk.critic, chunk.chunk] = chunk

    with TemporaryDirectory() as scratch:
        kept, identity = Path(scratch) / "journal", JsonObject()
        # without models nothing is worth keeping
        if out is not None and about["models"]:
            kept, identity = journal_of(out), _identity(about)
        otherwise = "remove it to start over"
        with RunLog(kept, identity, take, otherwise=otherwise) as log:
            evaluating: dict[str, Callable[[], Evaluation]] = {}
            for name, load in _loads(subjects).items():
                evaluating[name] = partial(_judge, name, load, rows, log, chunks, seed)
            for name, critic in fitted.items():
                evaluating[name] = partial(evaluate, critic, rows, seed=seed)
            for name, evaluation in evaluating.items():
                say(f"{name}: {count_of(len(rows), 'cases')}")
                evaluations[name] = evaluation()
                if out is not None:
                    _write(out, about, rows, evaluations)
        kept.unlink()
    return evaluations


def _write(
    out: Path,
    about: Mapping[str, Any],
    rows: list[Case],
    evaluations: NamedEvaluations,
) -> None:
    critics, judgments = {}, {}
    for name, evaluation in evaluations.items():
        critics[name] = evaluation.as_dict()
        judgments[name] = _by_id(rows, evaluation.judgments)
    values = {"manifest": about, "critics": critics, "judgments": judgments}
    write_json(out, values)


def _rows(path: Path, rows: Iterable[Case]) -> list[Case]:
    listed = list(rows)
    if not listed:
        raise UserError(f"{path} holds no rows")
    return listed


def _loads(subjects: EvaluationSubjects) -> dict[str, Callable[[], Critic]]:
    """Return what loads each model, by the name of its critic."""
    engine = subjects.engine
    loads: dict[str, Callable[[], Critic]] = {}
    if subjects.critic is not None:
        name = Path(subjects.critic).name
        loads[name] = partial(load_critic, subjects.critic, engine)
    for name, model, kind in (
        (PROMPTED, subjects.base, PromptedCodec),
        (GENERATOR, subjects.generator, GeneratorCodec),
    ):
        if model is not None:
            loads[name] = partial(_load_model, model, engine, kind)
    return loads


def _load_model(
    model: str | Path, engine: str | None, kind: type[PromptedCodec | GeneratorCodec]
) -> Critic:
    """Load a model that is no critic, asked in its own way."""
    from selfrag.interface import load_engine, load_tokenizer, resolve_model

    directory = resolve_model(model)
    codec = kind.from_tokenizer(load_tokenizer(directory))
    loaded = load_engine(engine, directory, max_model_len=codec.max_length)
    return student_critic(loaded, codec, exact=True)


def _judge(
    name: str,
    load: Callable[[], Critic],
    rows: list[Case],
    log: RunLog,
    chunks: JudgedChunks,
    seed: int,
) -> Evaluation:
    """Evaluate a model, asked about those chunks only that are not known; shows its progress."""
    parts = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    missing = [number for number in range(len(parts)) if (name, number) not in chunks]
    if missing:
        done = len(rows) - sum(len(parts[number]) for number in missing)
        with (
            load() as critic,
            Progress("evaluation", "case", len(rows), done) as progress,
        ):
            for number in missing:
                part = parts[number]
                started = time.perf_counter()
                judged = critic.judge(part)
                seconds = float(time.perf_counter() - started)
                progress.advance(len(part))
                scores = []
                for verdict in judged:
                    score = None
                    if verdict is not None:
                        score = verdict.distribution, verdict.coverage
                    scores.append(score)
                chunk = JudgedChunk(
                    name, number, seconds, critic.shortened(part), tuple(scores)
                )
                log.append(asdict(chunk))
                chunks[name, number] = chunk
    of_critic = [chunks[name, number] for number in range(len(parts))]
    judgments: list[Judgment | None] = []
    by_row = chain.from_iterable(chunk.scores for chunk in of_critic)
    for number, (row, score) in enumerate(zip(rows, by_row, strict=True)):
        judgment = None
        if score is not None:
            judgment = Judgment(
                row.labels, f"case {number}", *score, JudgmentSource.JUDGE
            )
        judgments.append(judgment)
    seconds = sum(chunk.seconds for chunk in of_critic)
    evaluation = compare(rows, judgments, seed=seed, seconds=seconds)
    return replace(evaluation, shortened=sum(chunk.shortened for chunk in of_critic))


def journal_of(out: Path) -> Path:
    """Return the file that keeps judgments until an evaluation is done; refuse a folder in the place of its result."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file")
    return out.with_name(f"{out.name}.journal")


def _identity(about: Mapping[str, Any]) -> JsonObject:
    """Return all that decides what the models judge; not the training rows and the seed, which only figures go by."""
    from critic.teacher.forms import OWN
    from selfrag.engines import choose_engine

    return {
        "rows": [*about["rows"].values()],
        **about["models"],
        "engine": about["engine"] or choose_engine()[0],
        "prompt": OWN.fingerprint,
        "chunk": CHUNK,
    }


def _manifest(
    rows_path: Path,
    subjects: EvaluationSubjects,
    folders: Mapping[str, Path],
    seed: int,
) -> JsonObject:
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


def _by_id(rows: list[Case], judgments: Sequence[Judgment | None]) -> JsonObject:
    distributions = {}
    for row, judged in zip(rows, judgments, strict=True):
        distributions[row.id] = (
            None if judged is None else judged.as_dict()["distribution"]
        )
    return distributions
