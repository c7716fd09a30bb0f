"""How a passage and a query become the texts that an encoder reads. Knows no encoder."""

from __future__ import annotations

import string
from dataclasses import dataclass

from retrieval.errors import UserError
from retrieval.passage import Passage


@dataclass(frozen=True, slots=True)
class Template:
    """Texts around the slots of a passage and of a query.

    The default is that of Contriever and MiniLM, `title + " " + text`; models trained with prefixes need their own,
    such as `Template("passage: {title} {text}", "query: {query}")` for E5.

    Attributes:
        passage: text with the slots `{title}` and `{text}`.
        query: text with the slot `{query}`.

    Raises:
        UserError: an unknown slot, or no `{text}` or `{query}`.
    """

    passage: str = "{title} {text}"
    query: str = "{query}"

    def __post_init__(self) -> None:
        _check(self.passage, needed="text", known={"title", "text"})
        _check(self.query, needed="query", known={"query"})

    def of_passage(self, passage: Passage) -> str:
        """The text of a passage. Braces in the passage stay text."""
        return self.passage.format(title=passage.title, text=passage.text).strip()

    def of_query(self, query: str) -> str:
        """The text of a query."""
        return self.query.format(query=query)


def _check(template: str, *, needed: str, known: set[str]) -> None:
    try:
        slots = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise UserError(f"template {template!r}: {error}; double the braces that are text") from error
    if needed not in slots or slots - known:
        raise UserError(f"template {template!r} must hold {{{needed}}} and no slot but: {', '.join(sorted(known))}")
