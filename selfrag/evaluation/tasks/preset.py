"""`Preset`: a published task as a value: schema of its file, metrics, and how it is run under each protocol.

Knows no file. A protocol is a way of running that somebody published: wording, budget and policy belong together, and
a figure can only be compared under the one it was obtained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.metrics.registry import metrics
from selfrag.evaluation.tasks.schemas import Schema
from selfrag.evaluation.tasks.task import SET_BY_TASK, Kind, Task
from selfrag.evaluation.tasks.wording import Wording

PAPER = "paper"
"""The protocol where none is named."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of running a task.

    Attributes:
        wording: around the question.
        passages: the first so many of the file are evidence.
        new_tokens: of an answer, all segments together.
        segments: of an answer.
        decoding: policy of a model with reflection tokens; None for systems without.
        marked: the wording asks for citations as numbers in brackets, and they are read.
    """

    wording: Wording
    passages: int
    new_tokens: int
    segments: int
    decoding: Decoding | None = None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Preset:
    """A published task.

    Attributes:
        name: what a command line and a run call it.
        title: for the reader.
        schema: of its public file.
        kind: of answers.
        metrics: names, the published one first.
        judged: names of published metrics that a second model computes on the finished run.
        hint: what a model that was not trained on such questions is told.
        protocols: by name; `paper` among them.
        published: metric to Self-RAG's figure in percent (Table 2), by size of the model, `7b` and `13b`.
    """

    name: str
    title: str
    schema: Schema
    kind: Kind
    metrics: tuple[str, ...]
    judged: tuple[str, ...]
    hint: str
    protocols: Mapping[str, Protocol]
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def protocol(self, name: str = PAPER) -> Protocol:
        """How the task is run.

        Raises:
            UserError: there is no such protocol; names the known ones.
        """
        if name not in self.protocols:
            raise UserError(f"{self.name} has no protocol {name!r}; it has {', '.join(self.protocols)}")
        return self.protocols[name]

    def task(self, protocol: str = PAPER) -> Task:
        """Kind, metrics and budget, marked with preset and protocol."""
        how = self.protocol(protocol)
        name = f"{self.name}/{protocol}"
        return Task(self.kind, metrics(self.metrics), how.new_tokens, how.segments, self.hint, name, how.marked)

    def settings(self, protocol: str = PAPER) -> dict[str, Any]:
        """Fields of `Decoding` in which the policy differs from the defaults, without what the task's budget sets.

        They are what `selfrag.evaluation.systems.named.system` takes as settings; empty for a protocol of systems
        without reflection tokens.
        """
        chosen = self.protocol(protocol).decoding
        if chosen is None:
            return {}
        plain = Decoding()
        names = [one.name for one in fields(Decoding) if one.name not in SET_BY_TASK]
        return {name: value for name in names if (value := getattr(chosen, name)) != getattr(plain, name)}

    def with_passages(self, passages: int) -> Preset:
        """The same task with another number of passages; figures are then no longer the published ones."""
        changed = {
            name: replace(how, passages=passages, decoding=how.decoding and replace(how.decoding, passages=passages))
            for name, how in self.protocols.items()
        }
        return replace(self, protocols=changed)
