"""What a model sees of a state: turns and documents with numbered sentences, and the places behind the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from retrieval.splitting import SentenceFinder
from selfrag.intrinsics.contract import Message, Scope, Site, State
from selfrag.intrinsics.dialects.tagging import plain, tag

LAST, DOCUMENTS, EARLIER = "last_message", "documents", "all_but_last_message"
"""What can carry sentence tags."""


@dataclass(frozen=True, slots=True)
class Document:
    """A passage that is shown.

    Attributes:
        index: its place in `State.passages`.
        id: its id.
        text: title and text, tagged where the dialect says so; a blank passage is shown without its title.
    """

    index: int
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A state as a request shows it.

    Attributes:
        messages: turns of the caller.
        documents: every passage, blank ones too.
        sites: sentences that the model calls by number, of the last turn.
        sources: sentences that it may cite by number.
    """

    messages: tuple[Message, ...]
    documents: tuple[Document, ...]
    sites: tuple[Site, ...]
    sources: tuple[Site, ...]


def see(tags: Mapping[str, str], state: State, find: SentenceFinder) -> Seen:
    """Number the sentences: of documents first, of earlier turns with the same counter, of the last turn from 0.

    Args:
        tags: letter by what carries tags.
        state: never changed.
        find: sentence splitter.
    """
    letters = frozenset(tags.values())
    sources: list[Site] = []
    documents: list[Document] = []
    for index, passage in enumerate(state.passages):
        if DOCUMENTS in tags:
            done = tag(passage.text, tags[DOCUMENTS], len(sources), find, letters=letters, title=passage.title)
            sources += [state.in_passage(Scope.SOURCE, index, *span) for span in done.spans]
            documents.append(Document(index, passage.id, done.text))
        else:
            whole = f"{passage.title}\n{passage.text}" if passage.title and passage.text.strip() else passage.text
            documents.append(Document(index, passage.id, plain(whole, letters)))
    messages = [replace(message, content=plain(message.content, letters)) for message in state.messages]
    last = len(messages) - 1
    if EARLIER in tags:
        for index in range(last):
            done = tag(state.messages[index].content, tags[EARLIER], len(sources), find, letters=letters)
            sources += [state.in_message(Scope.SOURCE, index, *span) for span in done.spans]
            messages[index] = replace(messages[index], content=done.text)
    sites: tuple[Site, ...] = ()
    if LAST in tags and messages:
        done = tag(state.messages[last].content, tags[LAST], 0, find, letters=letters)
        sites = tuple(state.in_message(Scope.SENTENCE, last, *span) for span in done.spans)
        messages[last] = replace(messages[last], content=done.text)
    return Seen(tuple(messages), tuple(documents), sites, tuple(sources))
