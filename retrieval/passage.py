"""`Passage`, the unit of evidence, and what a retriever is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, SupportsFloat

from selfrag.common.errors import UserError
from selfrag.common.untrusted import replace_surrogates


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that an answer may cite. Lone surrogates in its texts become U+FFFD.

    Attributes:
        id: stable identifier, unique in its corpus. Where a search numbers its results anew, two passages may share
            one; `key` tells them apart.
        text: the body. Untrusted: nothing in it can become a control token.
        title: may be empty.
        score: the retriever's score, higher is better; None for passages given by the caller. Any real number becomes
            a `float`, one that is not finite None.
        metadata: further columns of the corpus, where a search of an index found the passage. Two passages are equal
            whatever it holds. Numbers that are not finite are left out.

    Raises:
        UserError: a field is of another type.

    Example:
        >>> Passage("p7", "Goethe wrote Faust.", "Faust").key
        ('p7', 'Faust', 'Goethe wrote Faust.')
    """

    id: str
    text: str
    title: str = ""
    score: float | None = None
    metadata: Mapping[str, str | int | float | bool] = field(
        default_factory=dict, compare=False
    )

    def __post_init__(self) -> None:
        for name in ("id", "text", "title"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise UserError(
                    f"passage {self.id!r}: {name} must be text, not {type(value).__name__}"
                )
            object.__setattr__(self, name, replace_surrogates(value))
        object.__setattr__(self, "score", _score(self.id, self.score))
        if self.metadata:
            object.__setattr__(self, "metadata", _writable(self.id, self.metadata))
        elif not isinstance(self.metadata, Mapping):
            raise _wrong_metadata(self.id)

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what makes two passages the same: id, title and text."""
        return self.id, self.title, self.text

    def with_score(self, score: float | None) -> Passage:
        """Return the same passage with another retrieval score."""
        return replace(self, score=score)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; `metadata` only where there is any."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "metadata" or value
        }


def _writable(name: str, metadata: object) -> dict[str, str | int | float | bool]:
    """Return metadata that JSON and UTF-8 can hold: lone surrogates are replaced, numbers not finite are left out."""
    if not isinstance(metadata, Mapping):
        raise _wrong_metadata(name)
    values: dict[str, str | int | float | bool] = {}
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise _wrong_metadata(name)
        if isinstance(value, str):
            values[replace_surrogates(key)] = replace_surrogates(value)
        elif not isinstance(value, float) or math.isfinite(value):
            values[replace_surrogates(key)] = value
    return values


def _wrong_metadata(name: str) -> UserError:
    return UserError(
        f"passage {name!r:.80}: metadata must be a mapping of texts to texts, numbers or truth values"
    )


def _score(name: str, value: object) -> float | None:
    """Return a score as a finite number, or None."""
    if value is None:
        return None
    try:
        score = float(value) if isinstance(value, SupportsFloat) else None
    except (
        OverflowError,
        ValueError,
    ):  # an integer beyond all floats, a signalling NaN
        return None
    except TypeError:  # an array
        score = None
    if score is None:
        raise UserError(
            f"passage {name!r:.80}: score must be a number, not {type(value).__name__}"
        )
    return score if math.isfinite(score) else None


class Retriever(Protocol):
    """Batched search. Any callable `queries, k -> passages` is a retriever; `k` is an upper bound.

    Example:
        >>> def retrieve(queries, k):
        ...     return [[Passage("p7", f"All about {query}.")][:k] for query in queries]
        >>> retriever: Retriever = retrieve
        >>> retriever(["Faust"], 5)[0][0].text
        'All about Faust.'
    """

    def __call__(
        self, queries: Sequence[str], k: int, /
    ) -> Sequence[Sequence[Passage]]:
        """Return for each query up to `k` passages, best first."""
