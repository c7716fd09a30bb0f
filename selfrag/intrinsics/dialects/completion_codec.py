"""`CompletionCodec`: an intrinsic of Granite 3.2 or 3.3, whose prompt the client renders. Pure; runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from retrieval.splitting import SentenceFinder
from selfrag.errors import UserError
from selfrag.intrinsics.contract import (
    Completion,
    Gold,
    Piece,
    Reflection,
    Request,
    State,
    Target,
    TextPrompt,
)
from selfrag.intrinsics.dialects.binding import Binding, Shape
from selfrag.intrinsics.dialects.completion_spec import CompletionSpec, Turn
from selfrag.intrinsics.dialects.granite import System, Template, conversation, documents, head, opened, turn
from selfrag.intrinsics.dialects.judging import judged
from selfrag.intrinsics.dialects.plain_values import plain_values
from selfrag.intrinsics.dialects.reading import bare, understand
from selfrag.intrinsics.dialects.seen import Document, Seen, see
from selfrag.intrinsics.dialects.slots import from_scores, with_scores
from selfrag.intrinsics.dialects.teaching import targets

DATE = "April 1, 2025"
"""The date in the recorded traffic of both dialects."""


@dataclass(frozen=True)
class CompletionCodec:
    """One adapter of a completion dialect.

    Attributes:
        dialect: name of the dialect.
        spec: the adapter's prompt.
        binding: what its reply means.
        template: how this Granite generation frames turns and documents.
        find: sentence splitter; the adapters were trained with `punkt`.
        exact: score a label that stands right behind the prompt as a slot, and ask for log-probabilities of others;
            False sends the request exactly as published.
        adapter: name of the adapter on the server; None for the base model.
        date: what the system turn calls today.
        system: what stands in the system turn where the conversation does not begin with one.
    """

    dialect: str
    spec: CompletionSpec
    binding: Binding
    template: Template
    find: SentenceFinder
    exact: bool = True
    adapter: str | None = None
    date: str = DATE
    system: System = System.DEFAULT

    @property
    def intrinsic(self) -> str:
        """Name of the intrinsic."""
        return self.binding.intrinsic

    def encode(self, state: State) -> Request:
        """The request; see `exact`.

        Raises:
            UserError: there is no message, an argument is missing, or several documents where one is asked about.
        """
        if not state.messages:
            raise UserError(f"{self.intrinsic}: the conversation is empty; give at least one turn")
        seen = see(self.spec.tags, state, self.find)
        request = Request(
            state,
            TextPrompt(
                tuple(self._pieces(state, seen)), "\n".join(f"{one.role} {one.text}" for one in self.spec.turns)
            ),
            max_tokens=self.spec.max_tokens,
            temperature=state.extra.get("temperature", 0.0),
            constraint=self.spec.constraint,
            sites=seen.sites,
            sources=seen.sources,
            adapter=self.adapter,
        )
        return with_scores(self.binding, None, request) if self.exact else request

    def decode(self, request: Request, completion: Completion) -> Reflection:
        """Findings, and in `values` what the public library returns, corrected."""
        if request.slots:
            reflection = from_scores(self.binding, request, completion, lambda output: None)
        else:
            free = self.binding.shape in (Shape.WORD, Shape.FREE)
            reflection = judged(self.binding, (bare if free else understand)(request, completion))
        return replace(reflection, values=plain_values(self.binding, request, reflection))

    def teach(self, request: Request, gold: Gold) -> tuple[Target, ...]:
        """What a perfect adapter replies.

        Raises:
            UserError: the gold does not fit the request.
        """
        return targets(self.binding, request, gold)

    def _pieces(self, state: State, seen: Seen) -> Iterator[Piece]:
        messages, shown = list(seen.messages), seen.documents if self.spec.documents else ()
        if messages[0].role == "system":
            yield from conversation(messages[:1])
            messages = messages[1:]
        else:
            yield from head(self.template, self.date, self.system, bool(shown))
        yield from documents(self.template, shown)
        yield from conversation(messages)
        for behind in self.spec.turns:
            yield from self._turn(behind, state, seen)

    def _turn(self, behind: Turn, state: State, seen: Seen) -> Iterator[Piece]:
        if behind.role == "{document}":
            yield from documents(replace(self.template, joined=False), (self._only(seen),))
        elif behind.end == "open":
            yield from opened(behind.role)
        else:
            yield from turn(behind.role, behind.filled(self._values(behind, state)), behind.end == "turn")

    def _only(self, seen: Seen) -> Document:
        given = [document for document in seen.documents if document.text.strip()]
        if len(given) != 1:
            raise UserError(f"{self.intrinsic} asks about one passage at a time, not {len(given)}; give it one")
        return given[0]

    def _values(self, behind: Turn, state: State) -> dict[str, str]:
        values = {"query": state.query or state.messages[-1].content, **state.arguments}
        for name in behind.fields():
            if name not in values:
                raise UserError(f"{self.intrinsic} needs the argument {name!r}")
        return values
