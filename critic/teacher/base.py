"""What a teacher is: cases in, replies out, each with its raw text and its cost. Knows no endpoint and no prompt."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from critic.cases import Case
from retrieval.errors import UserError


class TeacherError(UserError):
    """A teacher cannot go on: the key is refused, the endpoint is not there, the quota is used up."""


class BadReplyError(ValueError):
    """What came back is no reply of such an endpoint; the text says what is wrong, in one line."""


class Outcome(StrEnum):
    """What came of asking."""

    LABELLED = "labelled"  # a label of the case's set
    ASIDE = "aside"  # an answer that is no label: counted, kept with its raw text, never turned into a label
    FAILED = "failed"  # no answer, after all repetitions; asked again by the next run


@dataclass(frozen=True, slots=True)
class Reply:
    """What a teacher said about one case.

    Attributes:
        outcome: whether there is a label, and if not, why not.
        label: a label name of the case's group; None unless `outcome` is `LABELLED`.
        raw: the answer as it came, cut to a bounded length. Untrusted.
        reason: why there is no label, in one line. Untrusted where it repeats words of an endpoint.
        source: who labelled; becomes `label_source` of the row.
        constraint: how the answer was held to the label set, if at all.
        requests: requests sent for it, repetitions included.
        prompt_tokens: tokens sent, as the endpoint counts them; 0 where it does not tell.
        completion_tokens: tokens received, likewise.
        distribution: probability of each label in the order of the label set, where all of them were scored.
        coverage: probability mass on the label set, where labels were scored.
    """

    outcome: Outcome
    label: str | None = None
    raw: str = ""
    reason: str = ""
    source: str = ""
    constraint: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    distribution: tuple[float, ...] | None = None
    coverage: float | None = None


class Teacher(Protocol):
    """Anything that labels cases."""

    @property
    def name(self) -> str:
        """What reports and `label_source` call it."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides its labels, as plain values; a resumed run must have the same. Holds no secret."""
        ...

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, Reply]]:
        """One reply a case, with the case's position, in the order in which they arrive.

        Args:
            cases: consumed as slots get free, so that a caller can decide late what is asked next.

        Raises:
            TeacherError: it cannot go on; replies that have arrived were yielded before.
        """
        ...
