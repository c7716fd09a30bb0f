"""Evaluates critics on a file of labelled rows; killed and started again it ends with the same figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from critic.cases import Case, Critic, Labelled, read_labelled, rows_file
from critic.evaluation.baselines import MajorityCritic, PromptedCodec, TfidfCritic
from critic.evaluation.figures import Evaluation, compare, evaluate
from critic.student.judge import StudentCritic, load_critic
from retrieval.atomic import write_json, writing
from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment, Source
from selfrag.runlog import Header, RunLog

CHUNK = 128
"""Cases judged at once: enough to fill batches, few enough that a kill costs little. Every run makes the same chunks,
because a model's numbers may shift with what shares its batch."""

_KIND = Header("critic-judgments/1", "judgments", "an evaluation", "remove it to start anew")

Scores: TypeAlias = tuple[tuple[float, ...], float]
"""Distribution and coverage of a judgment."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a critic said of some cases.

    Attributes:
        scores: one a case, in order; None where there is no judgment.
        seconds: taken by the judging.
        shortened: cases of which a prompt could not hold every part whole.
    """

    scores: tuple[Scores | None, ...]
    seconds: float
    shortened: int

    def judgments(self, cases: Sequence[Case]) -> list[Judgment | None]:
        """As critics give them; `cases` are those that were judged."""
        return [
            None if scores is None else _restored(case, scores, number)
            for number, (case, scores) in enumerate(zip(cases, self.scores, strict=True))
        ]


class Journal:
    """Judged chunks of one evaluation, in memory and on disk; use it as a context manager.

    Args:
        path: of the file, made if missing.
        identity: everything that decides a judgment, apart from the name of the critic; must be that of the file.

    Raises:
        UserError: the file is of another evaluation, damaged, or cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._chunks: dict[tuple[str, int], Judged] = {}
        self._file = RunLog(path, _KIND, {**identity, "chunk": CHUNK}, self._take)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()

    def chunks(self, critic: str) -> dict[int, Judged]:
        """Number of a chunk -> what is known of it."""
        return {number: judged for (name, number), judged in self._chunks.items() if name == critic}

    def append(self, critic: str, number: int, judged: Judged) -> None:
        """Add one chunk.

        Raises:
            UserError: the disk is full, or the file cannot be written; the file ends with the last whole chunk.
        """
        about = {"critic": critic, "chunk": number, "seconds": judged.seconds, "shortened": judged.shortened}
        self._file.append({**about, "scores": judged.scores})
        self._chunks[critic, number] = judged

    def _take(self, record: Mapping[str, Any]) -> None:
        scores = [None if one is None else (tuple(map(float, one[0])), float(one[1])) for one in record["scores"]]
        judged = Judged(tuple(scores), float(record["seconds"]), int(record["shortened"]))
        self._chunks[str(record["critic"]), int(record["chunk"])] = judged


def judged(
    name: str, opened: Callable[[], StudentCritic], cases: Sequence[Case], journal: Journal | None = None
) -> Judged:
    """What a critic says of all cases; shows a bar on a terminal.

    Args:
        name: of the critic, in the journal.
        opened: loads it; called only if a chunk is missing.
        cases: what is judged.
        journal: takes every chunk that is judged, and gives those that are there already.

    Raises:
        UserError: the critic cannot be loaded, or the journal cannot be written.
        EngineError: the engine refused a request or stopped.
    """
    parts = [cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK)]
    found = {} if journal is None else journal.chunks(name)
    missing = [number for number in range(len(parts)) if number not in found]
    if missing:
        from tqdm import tqdm

        done = len(cases) - sum(len(parts[number]) for number in missing)
        with opened() as critic, tqdm(total=len(cases), initial=done, unit="case", disable=None) as bar:
            critic = replace(critic, progress=bar.update)
            for number in missing:
                found[number] = _judged(critic, parts[number])
                if journal is not None:
                    journal.append(name, number, found[number])
    every = [found[number] for number in range(len(parts))]
    scores = tuple(one for part in every for one in part.scores)
    return Judged(scores, sum(part.seconds for part in every), sum(part.shortened for part in every))


def _judged(critic: StudentCritic, cases: Sequence[Case]) -> Judged:
    started = time.perf_counter()
    judgments = critic.judge(cases)
    seconds = time.perf_counter() - started
    scores = tuple(None if one is None else (one.distribution, one.coverage) for one in judgments)
    return Judged(scores, seconds, critic.shortened(cases))


def _restored(case: Case, scores: Scores, number: int) -> Judgment:
    evidence = None if case.evidence is None else case.evidence.id
    return Judgment(case.labels, f"case {number}", *scores, Source.JUDGE, evidence)


PROMPTED = "untrained base, prompted"
MAJORITY = "majority label"
TFIDF = "tf-idf + logistic regression"


@dataclass(frozen=True, slots=True)
class Subjects:
    """What is evaluated; at least one.

    Attributes:
        critic: directory or hub name of a trained critic.
        base: its base checkpoint (likewise), asked with the teacher's prompt.
        train: labelled rows, or a data folder, for the baselines that count.
        engine: engine of the models; None for the best one installed.
    """

    critic: str | Path | None = None
    base: str | Path | None = None
    train: Path | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.critic is None and self.base is None and self.train is None:
            raise UserError("nothing to evaluate: give a critic, a base model or training rows")


def run_evaluation(
    rows_path: Path,
    subjects: Subjects,
    *,
    out: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Evaluation]:
    """Evaluate on a file.

    Args:
        rows_path: labelled rows.
        subjects: what is evaluated.
        out: where to write figures, manifest and every single judgment, as JSON; written anew after each critic. Until
            the last one is done, `OUT.journal` holds what models judged, for the same evaluation started again.
        seed: of the intervals.
        say: told what is done next.

    Returns:
        Name of a critic -> its evaluation; the trained one first.

    Raises:
        UserError: a file, a row or a model cannot be used, or `OUT.journal` is of another evaluation.
    """
    rows = list(read_labelled(rows_path, judgeable=True))
    train = None if subjects.train is None else list(read_labelled(rows_file(subjects.train)))
    for path, read in ((rows_path, rows), (subjects.train, train)):
        if read == []:
            raise UserError(f"{path} holds no rows")
    # Fitted first: rows that nothing can be fitted to are better named before a model has judged for an hour.
    fitted: dict[str, Critic] = (
        {} if train is None else {TFIDF: TfidfCritic.fit(train), MAJORITY: MajorityCritic.fit(train)}
    )
    for given, find in _given(subjects).values():
        find(given)
    about: dict[str, Any] = {}
    if out is not None:
        with writing(out):  # better said before an hour of judging
            out.parent.mkdir(parents=True, exist_ok=True)
        about = _manifest(rows_path, subjects, seed)
    found: dict[str, Evaluation] = {}
    with _journal(out, about) as journal:
        waiting: list[tuple[str, Callable[[], Evaluation]]] = [
            *((name, partial(_asked, name, opened, rows, journal, seed)) for name, opened in _models(subjects)),
            *((name, partial(evaluate, critic, rows, seed=seed)) for name, critic in fitted.items()),
        ]
        for name, evaluation in waiting:
            say(f"{name}: {len(rows)} cases")
            found[name] = evaluation()
            if out is not None:
                write_json(out, _record(about, rows, found))
    return found


@contextmanager
def _journal(out: Path | None, about: Mapping[str, Any]) -> Iterator[Journal | None]:
    """What an evaluation that was interrupted left beside `out`; goes when all figures are written."""
    if out is None or not about["models"]:
        yield None
        return
    path = out.with_name(f"{out.name}.journal")
    with Journal(path, _identity(about)) as journal:
        yield journal
    path.unlink(missing_ok=True)


def _asked(
    name: str, opened: Callable[[], StudentCritic], rows: list[Labelled], journal: Journal | None, seed: int
) -> Evaluation:
    cases = [row.case for row in rows]
    found = judged(name, opened, cases, journal)
    evaluation = compare(rows, found.judgments(cases), seed=seed, seconds=found.seconds)
    return replace(evaluation, shortened=found.shortened)


def _models(subjects: Subjects) -> Iterator[tuple[str, Callable[[], StudentCritic]]]:
    if subjects.critic is not None:
        yield Path(subjects.critic).name, partial(load_critic, subjects.critic, subjects.engine)
    if subjects.base is not None:
        yield PROMPTED, partial(_prompted, subjects.base, subjects.engine)


def _prompted(base: str | Path, engine: str | None) -> StudentCritic:
    from selfrag.engines.select import load_engine
    from selfrag.loading import load_tokenizer, resolve_model

    directory = resolve_model(base)
    codec = PromptedCodec.from_tokenizer(load_tokenizer(directory))
    return StudentCritic(load_engine(engine, directory, max_model_len=codec.max_length), codec, exact=True)


def _given(subjects: Subjects) -> dict[str, tuple[str | Path, Callable[[str | Path], Path]]]:
    """The models, and what finds their folders."""
    from critic.student.judge import resolve_critic
    from selfrag.loading import resolve_model

    named = {"critic": (subjects.critic, resolve_critic), "base": (subjects.base, resolve_model)}
    return {name: (given, find) for name, (given, find) in named.items() if given is not None}


def _manifest(rows_path: Path, subjects: Subjects, seed: int) -> dict[str, Any]:
    from selfrag.evaluation.machine import machine
    from selfrag.evaluation.provenance import commit, sha256
    from selfrag.evaluation.runner_manifest import model_files

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "seed": seed,
        "engine": subjects.engine,
        "rows": {rows_path.name: sha256(rows_path)},
        "train": None if subjects.train is None else sha256(rows_file(subjects.train)),
        "models": {name: model_files(find(given)) for name, (given, find) in _given(subjects).items()},
    }


def _identity(about: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides what the models judge: not the training rows and the seed, whose figures are made anew."""
    from critic.teacher.prompts import fingerprint
    from selfrag.engines.select import choose_engine

    return {
        "rows": [*about["rows"].values()],
        **about["models"],
        "engine": about["engine"] or choose_engine()[0],
        "prompt": fingerprint(),
    }


def _record(about: Mapping[str, Any], rows: list[Labelled], found: Mapping[str, Evaluation]) -> dict[str, Any]:
    return {
        "manifest": about,
        "critics": {name: evaluation.as_dict() for name, evaluation in found.items()},
        "judgments": {
            name: {
                row.id: None if judgment is None else judgment.as_dict()["distribution"]
                for row, judgment in zip(rows, evaluation.judgments, strict=True)
            }
            for name, evaluation in found.items()
        },
    }
