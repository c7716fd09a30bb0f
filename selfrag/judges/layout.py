"""A conversation, its passages and arguments as the text of one user turn.

Text of a caller or passage never starts a line at the margin: a sentence is put on one line, other text is indented.
So it cannot imitate a number, a turn or a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from selfrag.reflection.inputs import JudgeInput, Message, Site


def one_line(text: str) -> str:
    """Return the text with every run of white space as one space."""
    return " ".join(text.split())


def is_word(text: str, word: str) -> bool:
    """Return whether a text says this word and nothing else; case, quotes and full stops aside."""
    return text.strip(" .\"'").casefold() == word.casefold()


def indented(text: str) -> str:
    """Return the text with all lines but the first indented by two spaces."""
    return "\n  ".join(text.splitlines())


def numbers(count: int) -> tuple[str, ...]:
    """Return numbers 0 to `count` of one width, so that none begins another: `00` (nothing), `01`, `02`, ..."""
    width = max(2, len(str(count)))
    return tuple(f"{number:0{width}d}" for number in range(count + 1))


def numbered_documents(state: JudgeInput, sources: Sequence[Site]) -> str:
    """Return the passages with a number before each sentence, counted from 1 across passages.

    Empty passages keep their place. Sources in turns of the conversation follow, turn after turn.
    """
    blocks: dict[
        tuple[int | None, int | None], list[str]
    ] = {}  # heading and sentences of a passage or turn
    for index in range(len(state.passages)):
        blocks[index, None] = [_heading(state, index)]
    for number, site in zip(numbers(len(sources))[1:], sources, strict=True):
        if site.message is not None:
            blocks.setdefault((None, site.message), [f"Turn {site.message + 1}"])
        blocks[site.passage, site.message].append(f"[{number}] {one_line(site.text)}")
    lines = ["Documents:"] if state.passages else []
    return "\n".join([*lines, *chain.from_iterable(blocks.values())])


def plain_document(state: JudgeInput, index: int) -> str:
    """Return one passage with its title, without numbers."""
    return f"{_heading(state, index)}\n  {indented(state.passages[index].text.strip())}"


def conversation(messages: Sequence[Message]) -> str:
    """Return the turns, each beginning with its role."""
    return "\n".join(
        [
            "Conversation:",
            *(_named(one_line(turn.role), turn.content) for turn in messages),
        ]
    )


def arguments(values: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the arguments of a task, each beginning with its name."""
    return "\n".join(
        _named(name.replace("_", " "), values.get(name, "")) for name in names
    )


def _named(name: str, text: str) -> str:
    return f"{name.capitalize()}: {indented(text.strip())}"


def turn(*parts: str) -> str:
    """Return the parts that are not empty, a blank line between them."""
    return "\n\n".join(part for part in parts if part)


def _heading(state: JudgeInput, index: int) -> str:
    title = one_line(state.passages[index].title)
    return f"Document {index + 1}: {title}" if title else f"Document {index + 1}"
