"""Settings of an evaluation, which options set. Importing them imports neither numpy nor a model."""

from __future__ import annotations

from dataclasses import dataclass

from selfrag.common.checks import check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Which items of files are answered, and what is searched for those without passages.

    Attributes:
        index: what is searched for items without passages: a folder, demo, an address, a retriever by NAME, NAME:TEXT
            or MODULE:NAME; several with commas.
        found: passages per search.
        limit: answer a seeded sample of this many items of each file.
        seed: seed of the sample and of the intervals.
        paraphrases: ask each question in so many wordings (1 to 5); intervals take them together.
    """

    index: str | None = None
    found: int = 10
    limit: int | None = None
    seed: int = 0
    paraphrases: int = 1

    def __post_init__(self) -> None:
        check_int("found", self.found)
        if self.limit is not None:
            check_int("limit", self.limit)
        check_int("paraphrases", self.paraphrases, 1, 5)
