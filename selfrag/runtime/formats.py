"""`FormatModel`: a loaded model that is no `SelfRAG`, as commands and servers ask it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from retrieval.passage import Passage, Retriever
from selfrag.common.errors import UserError
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import Decoding
from selfrag.decoding.tree import Decoder
from selfrag.runtime import Call, OwnsEngine
from selfrag.runtime.batching import SharedRetriever
from selfrag.runtime.sessions import Serving


@dataclass(slots=True)
class FormatModel(OwnsEngine):
    """What `ask` and `Service` ask. It knows no conversations: of one, the last turn is asked."""

    engine: Serving
    retriever: Retriever | None
    defaults: Decoding  # with the settings of this model
    settings: Sequence[str]  # fields of `Decoding` that requests may change
    about: str  # what it is, for requests that change others
    # of a question, evidence or None, and changed settings by name
    decoder: Callable[[str, Sequence[Passage] | None, Mapping[str, Any]], Decoder]

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Return up to `k` passages for each query, best first."""
        shared = self._shared()
        if shared is None:
            raise UserError("no retriever: pass retriever=..")
        return shared(queries, k)

    def generate(self, question: str) -> Answer:
        """Answer one question."""
        return cast(Answer, self._call(question, None, {}).answers())

    def astream(
        self,
        question: str | Sequence[Mapping[str, str]],
        *,
        evidence: Sequence[Passage] | None = None,
        decoding: Decoding,
        flow: str | None = None,
        rewrite_scope: Any = "retrieval",
    ) -> AsyncGenerator[Segment | Answer, None]:
        """Return the pieces of an answer."""
        changes: dict[str, Any] = {} if flow is None else {"flow": flow}
        for name in Decoding.__dataclass_fields__:
            value = getattr(decoding, name)
            if value != getattr(self.defaults, name):
                changes[name] = value
        for name in changes:
            if name not in self.settings:
                raise UserError(
                    f"selfrag.{name}: {self.about} {', '.join(self.settings)} and evidence"
                )
        text = question if isinstance(question, str) else question[-1]["content"]
        return self._call(text, evidence, changes).pieces_async()

    def _call(
        self,
        question: str,
        evidence: Sequence[Passage] | None,
        changes: Mapping[str, Any],
    ) -> Call:
        if not question.strip():
            raise UserError("the question is empty")
        decoder = self.decoder(question, evidence, changes)
        return Call([decoder], self.engine, self._shared())

    def _shared(self) -> Retriever | None:
        """Return the present retriever, of which all questions share the searches."""
        retriever = self.retriever
        if retriever is not None and not isinstance(retriever, SharedRetriever):
            retriever = self.retriever = SharedRetriever(retriever)
        return retriever
