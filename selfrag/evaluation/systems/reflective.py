"""Ours: the reflective decoders under a policy, within the budget of the task. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from selfrag.decoding.beam import decode
from selfrag.decoding.options import decode_options
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reflectors import Critic
from selfrag.decoding.trace import decoding_dict
from selfrag.decoding.tree import Decoder
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.tasks.choices import choices
from selfrag.evaluation.tasks.task import SET_BY_TASK, Task
from selfrag.prompting import Prompting


@dataclass(frozen=True, slots=True)
class Reflective:
    """A model trained with reflection tokens.

    Attributes:
        prompting: codec, vocabulary and layout of the model.
        decoding: the policy; the task sets segments and tokens, so that its budget holds.
        critics: the reflectors that the policy names; they run on the engine of the run.
    """

    prompting: Prompting
    decoding: Decoding
    cites_all: bool = False
    critics: tuple[Critic, ...] = ()

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Segment beam search, or option scoring with critique."""
        if item.options:
            found = choices(item)
            chosen = decode_options(
                item.instruction,
                found.surfaces,
                self.prompting,
                self.decoding,
                passages=item.passages,
                length=found.length,
            )
            return (yield from chosen)
        policy = self.policy(task)
        written = decode(item.instruction, self.prompting, policy, passages=item.passages, critics=self.critics)
        return (yield from written)

    def policy(self, task: Task) -> Decoding:
        """The policy within the task's budget."""
        tokens = min(self.decoding.segment_tokens, task.new_tokens)
        return replace(self.decoding, max_segments=task.segments, segment_tokens=tokens, answer_tokens=task.new_tokens)

    def as_dict(self) -> dict[str, Any]:
        """The policy."""
        settings = {k: v for k, v in decoding_dict(self.decoding).items() if k not in SET_BY_TASK}
        return {"kind": "reflective", "decoding": settings, "layout": self.prompting.layout.name}


def runnable(decoding: Decoding, given: Iterable[str]) -> Decoding:
    """The same policy, if a run of a checkpoint alone can keep to what was asked of it.

    Args:
        decoding: the policy.
        given: names of the fields that somebody changed.

    Raises:
        UserError: a field that the task sets, or reflectors and gates, whose adapters a run does not load.
    """
    if budget := next((name for name in given if name in SET_BY_TASK), None):
        raise UserError(f"{budget} is the task's, so that all systems have one budget; segment_tokens can be set")
    if decoding.reflectors or decoding.gates:
        raise UserError("reflectors and gates need models of their own; scripts/eval_joining.py runs them")
    return decoding
