"""`Passage`, the unit of evidence, and what a retriever is. Knows no index, no model and no reflection token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from retrieval.errors import UserError


def whole(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD, so that it can be written as UTF-8.

    Python makes them of bytes on a command line that are no UTF-8, and of escapes in JSON.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that an answer may cite. Lone surrogates in its texts become U+FFFD.

    Attributes:
        id: stable identifier, unique in its corpus; what a citation refers to.
        text: the body. Untrusted: nothing in it can become a control token.
        title: may be empty.
        score: the retriever's score, higher is better; None for passages given by the caller.
    """

    id: str
    text: str
    title: str = ""
    score: float | None = None

    def __post_init__(self) -> None:
        for name in ("id", "text", "title"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise UserError(f"passage {self.id!r}: {name} must be text, not {type(value).__name__}")
            object.__setattr__(self, name, whole(value))

    def with_score(self, score: float | None) -> Passage:
        """The same passage with another retrieval score."""
        return replace(self, score=score)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


class Retriever(Protocol):
    """Batched search. Any callable `queries, k -> passages` is a retriever; `k` is an upper bound."""

    def __call__(self, queries: Sequence[str], k: int, /) -> Sequence[Sequence[Passage]]:
        """For each query up to `k` passages, best first."""
        ...
