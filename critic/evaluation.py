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
from typing import Any

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
from selfrag.common.runs import RunLog
from selfrag.evaluation.failures import Failures
from selfrag.evaluation.intervals import (
    SPELLED,
    FloatArray,
    bootstrap,
    bracketed,
    json_values,
    mean,
)
from selfrag.evaluation.metrics.classification import (
    calibration_error,
    macro_effective,
    macro_f1,
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

    def as_dict(self) -> dict[str, Any]:
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, without single judgments; `shortened` only where there are such rows."""
        record: dict[str, Any] = {
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
    groups = {row.group for row in rows}
    if len(groups) != 1 or len(rows) != len(judgments):
        raise ValueError(
            f"{count_of(len(rows), 'rows')} of {count_of(len(groups), 'groups')} with"
            f" {count_of(len(judgments), 'judgments')}"
        )
    (group,) = groups
    names = GROUPS[group].names
    size = len(names)
    # 1. Labels as numbers; a case without a judgment has the number after the last.
    gold = np.array([names.index(row.label) for row in rows])
    judged = np.full(len(rows), size)
    shares = np.zeros((len(rows), size))
    for number, verdict in enumerate(judgments):
        if verdict is not None:
            judged[number] = names.index(verdict.label)
            shares[number] = verdict.distribution
    confusion = np.zeros((size, size + 1), dtype=int)
    np.add.at(confusion, (gold, judged), 1)
    # 2. Agreement, over all cases.
    is_gold, is_judged = np.eye(size)[gold], np.eye(size + 1)[judged][:, :size]

    def f1(counts: FloatArray) -> FloatArray:
        """Return macro-F1 over the labels that a sample's gold holds; a label never judged has F1 0."""
        return macro_f1(
            counts @ (is_gold * is_judged), counts @ is_gold, counts @ is_judged
        )

    # 3. Calibration, over the cases with a judgment.
    known = judged < size
    probabilities, truth = shares[known], is_gold[known]
    distances = ((probabilities - truth) ** 2).sum(axis=1)
    coverages = [verdict.coverage for verdict in judgments if verdict is not None]
    return CriticFigures(
        group,
        accuracy=mean((gold == judged).astype(float).tolist(), seed=seed),
        macro_f1=bootstrap(len(rows), f1, seed, effective=macro_effective(is_gold)),
        ece=calibration_error(
            probabilities.max(axis=1), (gold == judged)[known], seed=seed
        ),
        brier=mean(distances.tolist(), seed=seed, bounds=(0.0, 2.0)),
        coverage=float(np.mean(coverages)) if coverages else math.nan,
        confusion=tuple(map(tuple, confusion.tolist())),
        undefined=len(rows) - len(coverages),
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
        cells = []
        for group in groups:
            in_group = (
                evaluation.groups.get(group)
                if part is None
                else evaluation.parts.get(group, {}).get(part)
            )
            cells.append(_shown(getattr(in_group, figure, None)))
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
    return markdown_table(
        (
            "group",
            "rows",
            "accuracy",
            "macro-F1",
            "ECE",
            "Brier",
            "coverage",
            "no judgment",
        ),
        rows,
    )


def _parts(evaluations: NamedEvaluations, main: str, group: str) -> str:
    rivals = {
        name: rival.parts.get(group, {})
        for name, rival in evaluations.items()
        if name != main
    }
    rows = []
    for part, of_part in evaluations[main].parts[group].items():
        cells = [
            f"{parts[part].accuracy.value:.3f}" if part in parts else "-"
            for parts in rivals.values()
        ]
        rows.append(
            (
                part,
                of_part.accuracy.n,
                _shown(of_part.accuracy),
                f"{of_part.brier.value:.3f}",
                *cells,
            )
        )
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


class EvaluationJournal:
    """Chunks that models have judged, in memory and, with a file, on disk; see `CHUNK`."""

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        self.chunks: dict[tuple[str, int], JudgedChunk] = {}
        self.path = path
        self._log = (
            None
            if path is None
            else RunLog(path, identity, self._take, otherwise="remove it to start over")
        )

    def _take(self, record: Mapping[str, Any]) -> None:
        chunk = validate(JudgedChunk, record)
        self.chunks[chunk.critic, chunk.chunk] = chunk

    def add(self, chunk: JudgedChunk) -> None:
        """Keep a chunk."""
        self.chunks[chunk.critic, chunk.chunk] = chunk
        if self._log is not None:
            self._log.append(asdict(chunk))

    def close(self, *, remove: bool) -> None:
        """Free the file, and remove it where it is needed no more."""
        if self._log is not None:
            self._log.close()
            if remove:
                self._log.path.unlink(missing_ok=True)


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
    about: dict[str, Any] = {}
    if out is not None:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        about = _manifest(rows_path, subjects, folders, seed)
    # 3. Evaluate one critic after the other.
    journal = _journal(out, about)
    evaluations: dict[str, Evaluation] = {}
    is_complete = False
    try:
        for name, evaluation in _evaluations(subjects, fitted, rows, journal, seed):
            say(f"{name}: {count_of(len(rows), 'cases')}")
            evaluations[name] = evaluation()
            if out is not None:
                critics, judgments = {}, {}
                for judge, judged in evaluations.items():
                    critics[judge] = judged.as_dict()
                    judgments[judge] = _by_id(rows, judged.judgments)
                write_json(
                    out, {"manifest": about, "critics": critics, "judgments": judgments}
                )
        is_complete = True
    finally:
        journal.close(remove=is_complete)
    return evaluations


def _rows(path: Path, rows: Iterable[Case]) -> list[Case]:
    listed = list(rows)
    if not listed:
        raise UserError(f"{path} holds no rows")
    return listed


def _evaluations(
    subjects: EvaluationSubjects,
    fitted: Mapping[str, Critic],
    rows: list[Case],
    journal: EvaluationJournal,
    seed: int,
) -> Iterator[tuple[str, Callable[[], Evaluation]]]:
    """Yield each critic's name with what evaluates it, models first."""
    engine = subjects.engine
    loads: dict[str, Callable[[], Critic]] = {}
    if subjects.critic is not None:
        name = Path(subjects.critic).name
        loads[name] = partial(load_critic, subjects.critic, engine)
    if subjects.base is not None:
        loads[PROMPTED] = partial(_load_model, subjects.base, engine, PromptedCodec)
    if subjects.generator is not None:
        model = subjects.generator
        loads[GENERATOR] = partial(_load_model, model, engine, GeneratorCodec)
    for name, load in loads.items():
        yield name, partial(_judge, name, load, rows, journal, seed)
    for name, critic in fitted.items():
        yield name, partial(evaluate, critic, rows, seed=seed)


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
    journal: EvaluationJournal,
    seed: int,
) -> Evaluation:
    """Evaluate a model, asked about those chunks only that the journal lacks; shows its progress."""
    starts = range(0, len(rows), CHUNK)
    missing = [
        number for number in range(len(starts)) if (name, number) not in journal.chunks
    ]
    if missing:
        done = len(rows) - sum(
            len(rows[starts[number] :][:CHUNK]) for number in missing
        )
        with (
            load() as critic,
            Progress("evaluation", "case", len(rows), done) as progress,
        ):
            for number in missing:
                part = rows[starts[number] :][:CHUNK]
                started = time.perf_counter()
                judged = critic.judge(part)
                progress.advance(len(part))
                seconds = float(time.perf_counter() - started)
                scores = tuple(
                    None
                    if verdict is None
                    else (verdict.distribution, verdict.coverage)
                    for verdict in judged
                )
                journal.add(
                    JudgedChunk(name, number, seconds, critic.shortened(part), scores)
                )
    chunks = [journal.chunks[name, number] for number in range(len(starts))]
    judgments: list[Judgment | None] = []
    by_row = chain.from_iterable(chunk.scores for chunk in chunks)
    for number, (row, score) in enumerate(zip(rows, by_row, strict=True)):
        judgment = None
        if score is not None:
            judgment = Judgment(
                row.labels, f"case {number}", *score, JudgmentSource.JUDGE
            )
        judgments.append(judgment)
    evaluation = compare(
        rows, judgments, seed=seed, seconds=sum(chunk.seconds for chunk in chunks)
    )
    return replace(evaluation, shortened=sum(chunk.shortened for chunk in chunks))


def journal_of(out: Path) -> Path:
    """Return the file that keeps judgments until an evaluation is done; refuse a folder in the place of its result."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file")
    return out.with_name(f"{out.name}.journal")


def _journal(out: Path | None, about: Mapping[str, Any]) -> EvaluationJournal:
    """Open what an interrupted evaluation left beside `out`; without models nothing is worth keeping."""
    if out is None or not about["models"]:
        return EvaluationJournal(None, {})
    from critic.teacher.forms import OWN
    from selfrag.engines import choose_engine

    # All that decides what the models judge: not the training rows and the seed, whose figures are made again.
    engine = about["engine"] or choose_engine()[0]
    identity = {
        "rows": [*about["rows"].values()],
        **about["models"],
        "engine": engine,
        "prompt": OWN.fingerprint,
    }
    return EvaluationJournal(journal_of(out), {**identity, "chunk": CHUNK})


def _manifest(
    rows_path: Path,
    subjects: EvaluationSubjects,
    folders: Mapping[str, Path],
    seed: int,
) -> dict[str, Any]:
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


def _by_id(rows: list[Case], judgments: Sequence[Judgment | None]) -> dict[str, Any]:
    distributions = {}
    for row, judged in zip(rows, judgments, strict=True):
        distributions[row.id] = (
            None if judged is None else judged.as_dict()["distribution"]
        )
    return distributions
