"""`ChatCodec`: an intrinsic of granite-common or mellea on the wire. Pure; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from retrieval.checks import whole
from retrieval.splitting import SentenceFinder
from selfrag.errors import UserError
from selfrag.intrinsics.contract import (
    ChatPrompt,
    Completion,
    Constraint,
    Gold,
    Message,
    Reflection,
    Request,
    State,
    Target,
)
from selfrag.intrinsics.dialects.binding import Binding
from selfrag.intrinsics.dialects.chat_body import body
from selfrag.intrinsics.dialects.judging import judged
from selfrag.intrinsics.dialects.reading import Output, understand
from selfrag.intrinsics.dialects.rules import records
from selfrag.intrinsics.dialects.seen import Seen, see
from selfrag.intrinsics.dialects.slots import from_scores, with_scores
from selfrag.intrinsics.dialects.spec import Spec
from selfrag.intrinsics.dialects.teaching import targets

_DEFAULT_TOKENS = 1024
_LIMITS = ("max_completion_tokens", "max_tokens")
_OWN = frozenset(
    {
        *_LIMITS,
        "messages",
        "documents",
        "structured_outputs",
        "extra_body",
        "model",
        "temperature",
        "logprobs",
        "top_logprobs",
    }
)
"""Fields of the body that a `Request` has a place for."""


@dataclass(frozen=True)
class ChatCodec:
    """One adapter of a chat dialect.

    Attributes:
        dialect: name of the dialect.
        spec: the adapter's published configuration.
        binding: what its reply means; None for a configuration that is only sent and tabulated.
        find: sentence splitter; the adapters were trained with `punkt`.
        exact: score a label that stands right behind the prompt as a slot, and ask for log-probabilities of others;
            False sends the request exactly as published.
        adapter: name of the adapter on the server; None for the base model.
    """

    dialect: str
    spec: Spec
    binding: Binding | None
    find: SentenceFinder
    exact: bool = True
    adapter: str | None = None

    @property
    def intrinsic(self) -> str:
        """Name of the intrinsic."""
        return self.binding.intrinsic if self.binding else self.spec.name

    def wire(self, state: State) -> dict[str, Any]:
        """The published request, in the form of an OpenAI client: the server's own fields are under `extra_body`.

        Raises:
            UserError: there is no message, or an argument of the instruction is missing.
        """
        return self._seen(state)[0]

    def encode(self, state: State) -> Request:
        """The request; see `exact`.

        Raises:
            UserError: as `wire`, or the limit of tokens is no whole number.
        """
        made, seen = self._seen(state)
        extra_body = made.get("extra_body", {})
        schema = extra_body.get("structured_outputs", {}).get("json")
        prompt = ChatPrompt(
            tuple(Message(turn["role"], turn["content"]) for turn in made["messages"]),
            tuple(extra_body.get("documents", ())),
            {key: value for key, value in {**made, **extra_body}.items() if key not in _OWN},
            self.spec.instruction or "",
        )
        request = Request(
            state,
            prompt,
            max_tokens=_limit(made),
            temperature=made.get("temperature"),
            constraint=None if schema is None else Constraint(json_schema=schema),
            sites=seen.sites,
            sources=seen.sources,
            top_logprobs=made.get("top_logprobs", 0),
            adapter=self.adapter or self.spec.model,
        )
        return with_scores(self.binding, self.spec.schema, request) if self.exact and self.binding else request

    def decode(self, request: Request, completion: Completion) -> Reflection:
        """Findings, and in `values` the records of the public library."""
        if self.binding is None:
            output = understand(request, completion)
            values = records(self.spec.rules, output)
            return Reflection(request.state, (), None, completion.text, tuple(output.diagnostics), values)
        if request.slots:
            return from_scores(self.binding, request, completion, self._records)
        output = understand(request, completion)
        return judged(self.binding, output, self._records(output))

    def teach(self, request: Request, gold: Gold) -> tuple[Target, ...]:
        """What a perfect adapter replies.

        Raises:
            UserError: the gold does not fit the request, or nobody knows what the reply means.
        """
        if self.binding is None:
            raise UserError(f"{self.spec.name}: no meaning known for its reply; nothing to teach")
        return targets(self.binding, request, gold)

    def _seen(self, state: State) -> tuple[dict[str, Any], Seen]:
        if not state.messages:
            raise UserError(f"{self.spec.name}: the conversation is empty; give at least one turn")
        seen = see(self.spec.tags, state, self.find)
        return body(self.spec, state, seen, self.binding.defaults if self.binding else {}), seen

    def _records(self, output: Output) -> Any:
        # The rules find the same faults as the findings do, in other words.
        return records(self.spec.rules, replace(output, diagnostics=[]))


def _limit(made: Mapping[str, Any]) -> int:
    """Tokens that may be generated, by whichever name the contract or the caller gave them."""
    name = next((name for name in _LIMITS if made.get(name) is not None), None)
    if name is None:
        return _DEFAULT_TOKENS
    limit: int = made[name]
    whole(name, limit)
    return limit
