"""Sentences with the tags of the published dialects (`<r0> `), and the places that their numbers name.

A tag is never read out of text: a number that a model names is looked up in the list of places made here, so no text
can forge a place. What a caller or a passage wrote is made unable to look like a tag before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from selfrag.interface import (
    JudgeInput,
    Message,
    SentenceFinder,
    Site,
    SiteKind,
    Span,
    UserError,
)


def tag(
    text: str,
    letter: str,
    first: int,
    find: SentenceFinder,
    *,
    letters: Collection[str],
    title: str = "",
) -> tuple[str, list[Span]]:
    r"""Return a text with a tag in front of each sentence, and the sentences' offsets in the original.

    Tags count from `first`; a title goes in front of the first sentence as `{title}\n`, behind its tag, and is no part
    of any span. `letters` are all that are tags somewhere in the request.
    """
    spans = [] if not text.strip() else list(find(text))
    spans = [(begin, end) for begin, end in spans if text[begin:end].strip()]
    # A splitter may leave white space in front of a text to its first sentence; the model sees it, the span does not.
    sentences = [escape_tags(text[begin:end].rstrip(), letters) for begin, end in spans]
    if title and sentences:
        sentences[0] = f"{escape_tags(title, letters)}\n{sentences[0]}"
    tagged = " ".join(
        f"<{letter}{first + i}> {sentence}" for i, sentence in enumerate(sentences)
    )
    return tagged, [_trimmed(text, begin, end) for begin, end in spans]


def _trimmed(text: str, begin: int, end: int) -> Span:
    body = text[begin:end]
    return begin + len(body) - len(body.lstrip()), begin + len(body.rstrip())


def escape_tags(text: str, letters: Collection[str]) -> str:
    """Return the text with a space in whatever looks like a tag of this request: `<c1>` becomes `< c1>`."""
    if not letters or "<" not in text:
        return text
    return re.sub(rf"<(?=[{''.join(sorted(letters))}]\d+>)", "< ", text)


def number_of(name: object) -> int | None:
    """Return the number of a tag that a model wrote as `<c7>`, `c7`, `"7"` or 7; None for anything else."""
    if isinstance(name, int) and not isinstance(name, bool):
        return name
    match = (
        re.fullmatch(r"\s*<?[a-z]?(-?\d{1,9})>?\s*", name)
        if isinstance(name, str)
        else None
    )
    return int(match.group(1)) if match else None


LAST, DOCUMENTS, EARLIER = "last_message", "documents", "all_but_last_message"
"""What can carry sentence tags."""


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """A passage that is shown."""

    index: int  # its place in `JudgeInput.passages`
    id: str  # its id
    text: str  # title and text, tagged where the dialect says so; a blank passage is shown without its title


@dataclass(frozen=True, slots=True)
class NumberedState:
    """A state as a request shows it."""

    messages: tuple[Message, ...]  # turns of the caller
    documents: tuple[ShownPassage, ...]  # every passage, blank ones too
    # sentences that the model calls by number, of the last turn
    sites: tuple[Site, ...]
    sources: tuple[Site, ...]  # sentences that it may cite by number

    def only(self, name: str) -> ShownPassage:
        """Return the only document that is not blank; `name` is the intrinsic or adapter that needs exactly one."""
        documents = [document for document in self.documents if document.text.strip()]
        if len(documents) != 1:
            raise UserError(
                f"{name} asks about one passage at a time, not {len(documents)}; give it one"
            )
        return documents[0]


def number_sentences(
    tags: Mapping[str, str], state: JudgeInput, find: SentenceFinder
) -> NumberedState:
    """Count the sentences: of documents first, of earlier turns with the same counter, of the last turn from 0."""
    letters = frozenset(tags.values())
    sources: list[Site] = []
    documents: list[ShownPassage] = []
    for index, passage in enumerate(state.passages):
        if DOCUMENTS in tags:
            shown, spans = tag(
                passage.text,
                tags[DOCUMENTS],
                len(sources),
                find,
                letters=letters,
                title=passage.title,
            )
            sources += [
                state.in_passage(SiteKind.SOURCE, index, *span) for span in spans
            ]
            documents.append(ShownPassage(index, passage.id, shown))
        else:
            text = (
                f"{passage.title}\n{passage.text}"
                if passage.title and passage.text.strip()
                else passage.text
            )
            documents.append(
                ShownPassage(index, passage.id, escape_tags(text, letters))
            )
    messages = [
        replace(message, content=escape_tags(message.content, letters))
        for message in state.messages
    ]
    last = len(messages) - 1
    if EARLIER in tags:
        for index in range(last):
            shown, spans = tag(
                state.messages[index].content,
                tags[EARLIER],
                len(sources),
                find,
                letters=letters,
            )
            sources += [
                state.in_message(SiteKind.SOURCE, index, *span) for span in spans
            ]
            messages[index] = replace(messages[index], content=shown)
    sites: tuple[Site, ...] = ()
    if LAST in tags and messages:
        shown, spans = tag(
            state.messages[last].content, tags[LAST], 0, find, letters=letters
        )
        sites = tuple(
            state.in_message(SiteKind.SENTENCE, last, *span) for span in spans
        )
        messages[last] = replace(messages[last], content=shown)
    return NumberedState(tuple(messages), tuple(documents), sites, tuple(sources))
