"""From what a caller asks - a question, a conversation, many of either - to decoders.

A conversation of several turns is answered with its turns before the prompt; where a reflector that rewrites queries is
at hand, searches use the rewrite (`selfrag.intrinsics.flows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from retrieval.passage import Passage
from selfrag.decoding.batcher import Service
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reflectors import Critic
from selfrag.decoding.tree import Decoder
from selfrag.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.labels import Role
from selfrag.untrusted import whole

if TYPE_CHECKING:
    from selfrag.intrinsics.contract import Message, Reflector, State
    from selfrag.intrinsics.flows import Flow

Turns: TypeAlias = "Sequence[Mapping[str, Any] | Message]"
Scope = Literal["retrieval", "conversation", "alone"]


def is_conversation(given: object) -> bool:
    """Whether this is one list of turns, not a list of questions or conversations."""
    return isinstance(given, Sequence) and not isinstance(given, str) and bool(given) and not _is_text_or_list(given[0])


def _is_text_or_list(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, Sequence) and not hasattr(item, "role"))


def last_question(given: object) -> str:
    """The question of a question or conversation, for reports; empty if there is none."""
    if isinstance(given, str):
        return whole(given)
    if isinstance(given, Sequence):
        for turn in reversed(given):
            if isinstance(turn, Mapping) and turn.get("role") == "user" and isinstance(turn.get("content"), str):
                return whole(turn["content"])
    return ""


@dataclass(frozen=True, slots=True)
class Conversing:
    """How one call answers.

    Attributes:
        prompting: of the model.
        policy: settings.
        engine: of the driver.
        reflectors: at hand, by their roles and names.
        flow: a flow, the name of one of the paper's, or None for a rewrite where there is something to rewrite.
        rewrite_scope: what a rewrite changes, see `selfrag.intrinsics.flows.Rewrite`.
    """

    prompting: Prompting
    policy: Decoding
    engine: Any
    reflectors: tuple[Reflector, ...] = ()
    flow: Flow | str | None = None
    rewrite_scope: Scope = "retrieval"

    def __post_init__(self) -> None:
        names = [one.name for one in self.reflectors]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"two reflectors are called {twice!r}; give one of them another name")

    def decoder(self, given: str | Turns, passages: Sequence[Passage] | None) -> Decoder:
        """The decoder of one question or conversation."""
        if is_conversation(given) or self.flow is not None:
            return self._conversation(given, passages)
        question: Any = whole(given) if isinstance(given, str) else given
        return decode(question, self.prompting, self.policy, passages=passages, critics=self._critics())

    def services(self) -> dict[str, Service]:
        """What a driver needs to serve reflectors that run beside the engine."""
        if not self.reflectors and self.flow is None:
            return {}
        from selfrag.intrinsics.reflectors import services

        found = services(self.reflectors, self.engine)
        return found | (self.flow.services(self.engine) if self.flow and not isinstance(self.flow, str) else {})

    def _critics(self) -> tuple[Critic, ...]:
        if not self.reflectors:
            return ()
        from selfrag.intrinsics.reflectors import JUDGING, critic

        return tuple(critic(one, self.engine) for one in self.reflectors if one.role in JUDGING)

    def _conversation(self, given: str | Turns, passages: Sequence[Passage] | None) -> Decoder:
        from selfrag.intrinsics.state import read_state

        state = read_state(given)
        if state.messages[-1].role != "user":
            raise UserError("the conversation must end with the user's turn, which is the question")
        flow = self._flow(state, given_passages=passages is not None)
        if passages is not None:
            state = read_state(state, list(passages))
        return (yield from flow.decoder(state, self.engine))

    def _flow(self, state: State, *, given_passages: bool) -> Flow:
        from selfrag.intrinsics.flows import Flow, SelfRAGWriter, Write, named

        if isinstance(self.flow, Flow):
            return self.flow
        writer = SelfRAGWriter(self.prompting, self.policy, self._critics())
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
            k=self.policy.passages if "ad" in self.flow.casefold() else None,
            rewrite_scope=self.rewrite_scope,
            text=self.policy.abstention,
        )

    def _of(self, role: Role) -> Reflector | None:
        return next((one for one in self.reflectors if one.role == role), None)
