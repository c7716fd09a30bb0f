"""Judging by a model in chunks, each kept on disk as soon as it is there: a killed evaluation asks nothing twice.

Knows critics with an engine, and the journal; no figure, and not what decides whether a journal fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from critic.cases import Case
from critic.student.judge import StudentCritic
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
            None if scores is None else _judgment(case, scores, number)
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


def _judgment(case: Case, scores: Scores, number: int) -> Judgment:
    evidence = None if case.evidence is None else case.evidence.id
    return Judgment(case.labels, f"case {number}", *scores, Source.JUDGE, evidence)
