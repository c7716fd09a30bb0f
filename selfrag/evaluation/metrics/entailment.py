"""Entailment by any judge of support: does a claim follow from a passage? And `Remembered`, which asks nothing twice.

A claim follows if every judgment about it has the value 1: `entailed`, `Fully supported`, or each sentence `faithful`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import AllFailedError, UserError, count_of
from selfrag.common.progress import Progress
from selfrag.common.runs import RunLog
from selfrag.evaluation.metrics.alce import EntailmentPair
from selfrag.reflection.findings import Code, Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Judge
from selfrag.reflection.labels import Role
from selfrag.runtime import finish

EntailmentVerdicts: TypeAlias = list[bool | None]

QUESTION = Message("user", "Write one factual sentence.")
"""Before a hypothesis, since reflection tokens judge what answers an instruction; critics have the same words."""


def entails(judge: Judge, pairs: Sequence[EntailmentPair]) -> EntailmentVerdicts:
    """Return one verdict a pair of premise and claim, in order; None where the judge said nothing.

    Raises:
        UserError: the judge judges something else, or not one pair could be served.
        EngineError: its model is gone.
    """
    return list(map(_verdict, _judged(judge, pairs)))


def support_scores(judge: Judge, pairs: Sequence[EntailmentPair]) -> list[float | None]:
    """Return how far each premise supports its claim (0 to 1), by the mean over labels; errors as `entails`."""
    scores: list[float | None] = []
    for reflection in _judged(judge, pairs):
        if _verdict(reflection) is None:
            scores.append(None)
        else:
            scores.append(min(judgment.score for judgment in reflection.scored))
    return scores


def _judged(judge: Judge, pairs: Sequence[EntailmentPair]) -> list[Reflection]:
    if judge.role is not Role.SUPPORT:
        raise UserError(
            f"{judge.name} judges {judge.role}, and not whether a text is supported; name another judge"
        )
    if not pairs:
        return []
    reflections = finish(judge.judge(list(map(_input, pairs))), judge.engine)
    notes = chain.from_iterable(reflection.diagnostics for reflection in reflections)
    failures = [note.message for note in notes if note.code is Code.FAILED]
    if failures and not any(reflection.judgments for reflection in reflections):
        raise AllFailedError(
            f"{judge.name}: {len(failures)} of {count_of(len(pairs), 'requests')} failed: {failures[0]}"
        )
    return list(reflections)


def _input(pair: EntailmentPair) -> JudgeInput:
    premise, hypothesis = pair
    return JudgeInput(
        (QUESTION, Message("assistant", hypothesis)), (Passage("premise", premise, ""),)
    )


def _verdict(reflection: Reflection) -> bool | None:
    """Return whether all judgments are of full support. What claims nothing does not count; what is undefined does."""
    if (
        any(finding.judgment is None for finding in reflection.findings)
        or not reflection.scored
    ):
        return None
    return all(judgment.mode == 1.0 for judgment in reflection.scored)


AT_ONCE = 256
"""Pairs of one call: a kill loses no more."""


class Remembered:
    """The verdicts of a judge, kept in a run log under a digest of their pair.

    A file belongs to one judge: another one is refused. Pairs without a verdict are asked again by the next run.
    """

    def __init__(self, judge: Judge, path: Path) -> None:
        self.judge = judge
        self.name, self.identity = judge.name, judge.identity
        self._verdicts: dict[str, bool] = {}
        remedy = "delete this line to ask for it again"
        self._log = RunLog(
            path, {"judge": dict(judge.identity())}, self._take, remedy=remedy
        )
        self._log.close()

    def entails(self, pairs: Sequence[EntailmentPair]) -> EntailmentVerdicts:
        """Return verdicts from the file, and from the judge for the others; equal pairs are asked once."""
        keys = list(map(_key, pairs))
        unknown = {
            key: pair
            for key, pair in zip(keys, pairs, strict=True)
            if key not in self._verdicts
        }
        waiting = list(unknown)
        with self._log, Progress(self.name, "verdict", len(waiting)) as progress:
            for start in range(0, len(waiting), AT_ONCE):
                chunk = waiting[start : start + AT_ONCE]
                verdicts = entails(self.judge, [unknown[key] for key in chunk])
                for key, verdict in zip(chunk, verdicts, strict=True):
                    if verdict is not None:
                        self._log.append({"pair": key, "entails": verdict})
                        self._verdicts[key] = verdict
                progress.advance(len(chunk))
        return list(map(self._verdicts.get, keys))

    def _take(self, line: Mapping[str, object]) -> None:
        if len(str(line["pair"])) != 64 or not isinstance(line["entails"], bool):
            raise ValueError("no verdict")
        self._verdicts[str(line["pair"])] = line["entails"]


def _key(pair: EntailmentPair) -> str:
    return hashlib.sha256(json.dumps(pair).encode("utf-8", "surrogatepass")).hexdigest()


def remembered(judge: Judge, folder: Path) -> Remembered:
    """Return a judge with its file in a folder, where every judge has one of its own: `verdicts-MARK.jsonl`."""
    mark = hashlib.sha256(
        json.dumps(dict(judge.identity()), sort_keys=True).encode()
    ).hexdigest()[:12]
    return Remembered(judge, folder / f"verdicts-{mark}.jsonl")
