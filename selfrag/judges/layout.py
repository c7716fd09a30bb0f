"""A conversation, its passages and arguments as the text of one user turn.

Text of a caller or passage never starts a line at the margin: a sentence is put on one line, other text is indented.
So it cannot imitate a number, a turn or a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from selfrag.reflection.inputs import JudgeInput, Message, Site


def one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def is_word(text: str, word: str) -> bool:
    """Whether a text says this word and nothing else; case, quotes and full stops aside."""
    return text.strip(" .\"'").casefold() == word.casefold()


def indented(text: str) -> str:
    """The text with all lines but the first indented by two spaces."""
    return "\n  ".join(text.splitlines())


def numbers(count: int) -> tuple[str, ...]:
    """Numbers 0 to `count` of one width, so that none begins another: `00` (nothing), `01`, `02`, ..."""
    width = max(2, len(str(count)))
    return tuple(f"{number:0{width}d}" for number in range(count + 1))


def numbered_documents(state: JudgeInput, sources: Sequence[Site]) -> str:
    """The passages with a number before each sentence, counted from 1 across passages; empty ones keep their place.

    Sources in turns of the conversation follow, turn after turn.
    """
    counted = zip(numbers(len(sources))[1:], sources, strict=True)
    grouped = groupby(counted, key=lambda pair: (pair[1].passage, pair[1].message))
    held = {place: list(group) for place, group in grouped}
    headings: dict[tuple[int | None, int | None], str] = {}
    headings |= {(index, None): _heading(state, index) for index in range(len(state.passages))}
    headings |= {(None, index): f"Turn {index + 1}" for _, index in held if index is not None}
    lines = ["Documents:"] if state.passages else []
    for place, heading in headings.items():
        lines.append(heading)
        lines += [f"[{name}] {one_line(site.text)}" for name, site in held.get(place, [])]
    return "\n".join(lines)


def plain_document(state: JudgeInput, index: int) -> str:
    """One passage with its title, without numbers."""
    return f"{_heading(state, index)}\n  {indented(state.passages[index].text.strip())}"


def conversation(messages: Sequence[Message]) -> str:
    """The turns, each beginning with its role."""
    return "\n".join(
        ["Conversation:", *(f"{one_line(m.role).capitalize()}: {indented(m.content.strip())}" for m in messages)]
    )


def arguments(given: Mapping[str, str], names: Sequence[str]) -> str:
    """The arguments of a task, each beginning with its name."""
    return "\n".join(
        f"{name.replace('_', ' ').capitalize()}: {indented(given.get(name, '').strip())}" for name in names
    )


def turn(*parts: str) -> str:
    """Parts that are not empty, a blank line between them."""
    return "\n\n".join(part for part in parts if part)


def _heading(state: JudgeInput, index: int) -> str:
    title = one_line(state.passages[index].title)
    return f"Document {index + 1}: {title}" if title else f"Document {index + 1}"
