"""A model that searches by tags as a system of `selfrag eval`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from selfrag.extensions.search_tags.decoder import Searcher, decode_tags
from selfrag.interface import Decoder, DecodingError, Item, Task


@dataclass(frozen=True, slots=True)
class Searching:
    """A model that searches by writing tags. Its budget is its own: thoughts and queries are tokens too."""

    searcher: Searcher  # format, tokenizer and budget
    live: bool = False  # whether it searches by itself; else every search gets the item's passages
    cites_all: bool = False

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Take turns and search until it answers the bare question."""
        if item.options and not task.written:
            raise DecodingError(
                "a model that searches by tags answers in words; it has no multiple choice"
            )
        question = item.query or item.instruction
        return (
            yield from decode_tags(
                question, self.searcher, None if self.live else item.passages
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """Format and budget."""
        chat = self.searcher.chat
        return {
            "kind": "search tags",
            "profile": asdict(self.searcher.profile),
            "budget": asdict(self.searcher.budget),
            "chat": chat and chat.source,
            "searches": "by itself" if self.live else "the item's passages",
        }

    def searching(self) -> Searching:
        """Return the same system, which searches by itself."""
        return replace(self, live=True)
