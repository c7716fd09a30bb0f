"""A row as its source has it, with the place it stands at; and a row that gives no pair, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from critic.pairs import Pair
from retrieval.errors import UserError
from retrieval.passage import Passage


@dataclass(frozen=True, slots=True)
class Raw:
    """One row before anybody looked into it.

    Attributes:
        place: `file:line`, or what comes nearest to it.
        key: the row's name in its source where the source names rows by key, else its number from 0.
        record: the row.
    """

    place: str
    key: str
    record: Mapping[str, Any]

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Put the place in front of what is wrong with this row."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.place}: {error}; fix this row, or choose the format it is in") from error


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row of a known kind that is no pair, such as one without an output. Counted and named, never silent."""

    place: str
    reason: str


class UnusableError(Exception):
    """Raised while one row is read: it is well formed, but no pair. `str(error)` is the reason."""


Outcome: TypeAlias = Pair | Skipped
Loader: TypeAlias = Callable[[Iterable[Raw], str, str | None], Iterator[Outcome]]
"""Rows, the name to give the data set, and the wanted language (for sources that know it; None is any)."""


def rowwise(parse: Callable[[Raw, str], Pair]) -> Loader:
    """A loader for sources in which every row stands for itself.

    Args:
        parse: makes a pair; raises `UnusableError` for a row that is none and `UserError` for a malformed one.
    """

    def read(rows: Iterable[Raw], dataset: str, language: str | None) -> Iterator[Outcome]:
        for raw in rows:
            with raw.blamed():
                try:
                    outcome: Outcome = parse(raw, dataset)
                except UnusableError as error:
                    outcome = Skipped(raw.place, str(error))
            yield outcome

    return read


def make_pair(
    key: str, dataset: str, kind: str, instruction: str, output: str, passages: tuple[Passage, ...] = ()
) -> Pair:
    """A pair with the white space around its texts removed.

    Raises:
        UnusableError: instruction or output is blank, or holds half a character, which no UTF-8 file can.
    """
    instruction, output = instruction.strip(), output.strip()
    for name, text in (("instruction", instruction), ("output", output)):
        if not text:
            raise UnusableError(f"no {name}")
    for text in (key, instruction, output, *(text for p in passages for text in (p.id, p.title, p.text))):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UnusableError("text with half a character (a lone surrogate)") from None
    return Pair(key, dataset, instruction, output, kind, passages)
