"""`ReflectiveWriter`: the same questions answered by Self-RAG decoding, with its own citations and its own judgments.

Each segment is written after one passage, cites it, and is judged by the model's reflection tokens. No prompt is made,
so there are no examples, nothing is asked about the answer, and the order of the passages cannot matter but in ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, drive
from selfrag.decoding.policy import Decoding
from selfrag.engines.base import Engine
from selfrag.evaluation.metrics.output import USAGE
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.trials import Trial, Written
from selfrag.intrinsics.contract import Failed
from selfrag.prompting import Prompting


@dataclass(frozen=True, slots=True)
class ReflectiveWriter:
    """Self-RAG as a writer of the grid.

    Attributes:
        engine: of a model with reflection tokens.
        prompting: of the model.
        decoding: the policy.
    """

    engine: Engine
    prompting: Prompting
    decoding: Decoding = Decoding(mode="always", max_segments=3)  # noqa: RUF009 - frozen value

    def write(self, trials: Sequence[Trial]) -> list[Written | Failed]:
        """One decode a trial; all share the engine's batches."""
        found: dict[int, Written | Failed] = {}
        decoders = [decode(trial.question, self.prompting, self.decoding, passages=trial.passages) for trial in trials]
        for event in drive(decoders, self.engine, None):
            if isinstance(event, Answered):
                found[event.index] = _written(event.answer, trials[event.index])
            elif isinstance(event, Broken):
                found[event.index] = Failed(str(event.error))
        return [found[index] for index in range(len(trials))]

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()


def fits(cell: Cell) -> bool:
    """Whether Self-RAG decoding has a form for a cell."""
    return cell.examples == 0 and not cell.asked.explains


def _written(answer: Answer, trial: Trial) -> Written:
    names = {passage_id: name for name, passage_id in trial.passage_ids.items()}
    usage = {name: int(getattr(answer.usage, name)) for name in USAGE}
    judgments = tuple(_judged(segment) for segment in answer.segments)
    text = answer.cited_text(lambda passage: f"[{names[passage.id]}]")
    return Written(text, "stop", usage, answer.usage.cached_tokens, judgments)


def _judged(segment: Segment) -> dict[str, Any]:
    values = segment.as_dict()
    cited = None if segment.citation is None else segment.citation.id
    return {"text": segment.text, "cited": cited, "reflections": values["reflections"]}
