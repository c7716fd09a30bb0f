"""Turns questions and conversations into decoders with reflectors or flows (`SelfRAG` decodes the others).

Earlier turns of a conversation precede the prompt. If a query-rewrite reflector is available, searches use its rewrite
(`selfrag.intrinsics.flows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.passage import Passage
from selfrag.decoding.driver import Service
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reflectors import Critic
from selfrag.decoding.tree import Decoder
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Reflector
from selfrag.intrinsics.flows import Flow, SelfRAGWriter, Write, named
from selfrag.intrinsics.flows.flow import Sees, parts_of
from selfrag.intrinsics.reflectors import JUDGING, critic, services
from selfrag.intrinsics.state import State, read_state
from selfrag.prompting import Prompting
from selfrag.reflection.labels import Role


@dataclass(frozen=True, slots=True)
class Conversation:
    """How one call of `SelfRAG` answers."""

    prompting: Prompting  # of the model
    policy: Decoding  # settings
    engine: Any  # of the driver
    reflectors: tuple[Reflector, ...]  # at hand, by their roles and names
    # a flow, the name of one of the paper's, or None for a rewrite where there is something to rewrite
    flow: Flow | str | None
    rewrite_scope: Sees  # what a rewrite changes, see `selfrag.intrinsics.flows.Rewrite`

    def __post_init__(self) -> None:
        names = [one.name for one in self.reflectors]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"two reflectors are called {twice!r}; give one of them another name")

    @property
    def critics(self) -> tuple[Critic, ...]:
        """The reflectors that judge what is written."""
        return tuple(critic(one, self.engine) for one in self.reflectors if one.role in JUDGING)

    def decoder(self, given: Any, passages: Sequence[Passage] | None) -> Decoder:
        """The decoder of one question or conversation; refuses one that does not end with the user's turn."""
        state = read_state(given)
        if state.messages[-1].role != "user":
            raise UserError("the conversation must end with the user's turn, which is the question")
        flow = self._flow(state, given_passages=passages is not None)
        if passages is not None:
            state = read_state(state, list(passages))
        return (yield from flow.decoder(state, self.engine))

    def services(self) -> dict[str, Service]:
        """What a driver needs to serve reflectors that run beside the engine."""
        found = services(self.reflectors, self.engine)
        return found | (self.flow.services(self.engine) if isinstance(self.flow, Flow) else {})

    def _flow(self, state: State, *, given_passages: bool) -> Flow:
        if isinstance(self.flow, Flow):
            return self.flow
        writer = SelfRAGWriter(self.prompting, self.policy, self.critics)
        rewrite, answerability = self._of(Role.REWRITE), self._of(Role.ANSWERABLE)
        if self.flow is None:
            follows = sum(turn.role == "user" for turn in state.messages) > 1
            if not follows or rewrite is None or given_passages:
                return Flow((Write(writer),))
            return named("qr", writer, rewrite=rewrite, k=None, rewrite_scope=self.rewrite_scope)
        return named(
            self.flow,
            writer,
            rewrite=rewrite,
            answerability=answerability,
            k=self.policy.passages if {"again", "ad"} & set(parts_of(self.flow)) else None,
            rewrite_scope=self.rewrite_scope,
            text=self.policy.abstention,
        )

    def _of(self, role: Role) -> Reflector | None:
        return next((one for one in self.reflectors if one.role == role), None)
