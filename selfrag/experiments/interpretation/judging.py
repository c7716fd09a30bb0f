"""Asks a model's reflection tokens and the citation intrinsic about recorded replies. Loads no model itself.

For each context of a reply: is it relevant (IsRel), does it support the answer (IsSup), does the intrinsic cite it?
Beside what the reply cites and what is relevant in truth, this is the material of `agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.engines.base import Engine
from selfrag.engines.serving import pump
from selfrag.evaluation.records import read_records
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.replies import Reply
from selfrag.experiments.interpretation.run import Job
from selfrag.experiments.interpretation.streaming import Made, Stream
from selfrag.experiments.interpretation.trials import Trial
from selfrag.intrinsics.contract import Message, Reflection, Reflector, State
from selfrag.reflection.judgment import Judgment

SUFFIX = "agreement"


@dataclass(frozen=True, slots=True)
class Judges:
    """Who is asked; all on one engine.

    Attributes:
        engine: of the Self-RAG model.
        relevance: reflector of IsRel.
        support: reflector of IsSup.
        citation: the citation intrinsic.
    """

    engine: Engine
    relevance: Reflector
    support: Reflector
    citation: Reflector

    def ask(self, reflector: Reflector, states: Sequence[State]) -> list[Reflection]:
        """One reflection a state."""
        return pump(self.engine, reflector.reflect(states)) if states else []

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()


def judge_cells(
    job: Job, cells: Sequence[Cell], stream: Stream, judges: Callable[[], Judges], identity: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Judge the replies of finished cells.

    Args:
        job: as the cells were run.
        cells: all finished.
        stream: of the same run.
        judges: gives who judges; called only if there is something to judge.
        identity: of the judging model, for the manifest.

    Returns:
        Name of the records to items, failed, seconds and cached tokens.

    Raises:
        UserError: as `run_cells`.
    """
    results = {}
    for cell in cells:
        records = {record["id"]: record for record in read_records(stream.directory.folder / f"{cell.name}.jsonl")}

        def make(some: list[str], cell: Cell = cell, records: Mapping[str, Any] = records) -> list[Made]:
            return _judge([job.trial(cell, one) for one in some], [records[one] for one in some], judges())

        name = f"{cell.name}.{SUFFIX}"
        entry = job.entry((), cell=cell.as_dict(), judge=dict(identity))
        results[name] = stream.fill(name, job.path, entry, list(records), make)
    return results


def _judge(trials: Sequence[Trial], records: Sequence[Mapping[str, Any]], judges: Judges) -> list[Made]:
    asked = [_Asked(made, record) for made, record in zip(trials, records, strict=True)]
    relevance = judges.ask(judges.relevance, [state for one in asked for state in one.passages(answered=False)])
    support = judges.ask(judges.support, [state for one in asked for state in one.passages(answered=True)])
    cited = judges.ask(judges.citation, [state for one in asked for state in one.whole()])
    of_passages, of_answers, of_wholes = iter(relevance), iter(support), iter(cited)
    made: list[Made] = []
    for one in asked:
        isrel = [next(of_passages) for _ in one.passages(answered=False)]
        issup = [next(of_answers) for _ in one.passages(answered=True)]
        intrinsic = next(of_wholes) if one.whole() else None
        made.append((one.record(isrel, issup, intrinsic), 0))
    return made


@dataclass(frozen=True, slots=True)
class _Asked:
    """One recorded reply, and the states that are judged of it."""

    made: Trial
    before: Mapping[str, Any]

    @property
    def answer(self) -> str:
        """Without citations; empty where nothing came back."""
        return "" if self.before.get("error") else Reply(self.before["answer"]).plain

    def passages(self, *, answered: bool) -> list[State]:
        """One state a context: the question, with the answer or without it."""
        if answered and not self.answer:
            return []
        said = (Message("assistant", self.answer),) if answered else ()
        question = Message("user", self.made.question)
        return [State((question, *said), (passage,)) for passage in self.made.passages]

    def whole(self) -> list[State]:
        """The answer with all contexts; none where there is no answer."""
        turns = (Message("user", self.made.question), Message("assistant", self.answer))
        return [State(turns, self.made.passages)] if self.answer else []

    def record(
        self, isrel: Sequence[Reflection], issup: Sequence[Reflection], intrinsic: Reflection | None
    ) -> dict[str, Any]:
        """All verdicts on each context; None for one that was never made."""
        credited, cited = set(self.before.get("credited", ())), set(self.before.get("cited", ()))
        relevant = set(self.before["relevant"])
        chosen = _cited_passages(intrinsic)
        rows = [
            {
                "id": passage.id,
                "cited": passage.id in cited,
                "credited": passage.id in credited,
                "relevant": passage.id in relevant,
                "isrel": _verdict(isrel[at]),
                "issup": _verdict(issup[at]) if issup else None,
                "intrinsic": None if chosen is None else at in chosen,
            }
            for at, passage in enumerate(self.made.passages)
        ]
        return {"id": self.before["id"], "error": None, "scores": {}, "answered": bool(self.answer), "contexts": rows}


def _verdict(reflection: Reflection) -> dict[str, Any] | None:
    judgment: Judgment | None = reflection.findings[0].judgment if reflection.findings else None
    if judgment is None or not judgment.defined:
        return None
    return {"label": judgment.label, "score": judgment.score, "coverage": judgment.coverage}


def _cited_passages(reflection: Reflection | None) -> set[int] | None:
    """Positions of the contexts that the intrinsic cites anywhere; None where no sentence was judged."""
    if reflection is None or not reflection.judgments:
        return None
    return {c.site.passage for f in reflection.findings for c in f.citations if c.site.passage is not None}
