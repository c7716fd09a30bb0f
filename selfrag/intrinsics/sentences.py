"""Places of a conversation that are judged: its sentences, turns and passages, as sites in the original strings.

Published dialects show them with tags (`<r0> `). A tag is never read out of text: a number that a model names is looked
up in the list of places made here, so no text can forge a place. What a caller or a passage wrote is made unable to
look like a tag before it is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from retrieval.sentences import SentenceFinder, Span, sentence_finder, sentences
from selfrag.common.errors import UserError
from selfrag.intrinsics.contract import Citation
from selfrag.intrinsics.state import Message, Scope, Site, State

# Abbreviations that spaCy's English rules end a sentence after, though a small letter or a figure follows.
_ABBREVIATIONS = frozenset({"al.", "approx.", "c.", "ca.", "cf.", "esp.", "etc.", "fig.", "no.", "pp.", "vol.", "vs."})
_TAIL = 20
"""Characters at the end of a sentence that are looked at: more than the longest abbreviation and white space."""


@cache
def _finder() -> SentenceFinder:
    return sentence_finder("rules")


def rules(text: str) -> Sequence[Span]:
    """Sentence spans by spaCy's rules, loaded at the first call; "et al. moved" stays in one sentence.

    White space belongs to one of the neighbours; `sentences` of `retrieval.sentences` trims it.
    """
    spans: list[Span] = []
    for start, end in _finder()(text):
        if spans and _goes_on(text[max(spans[-1][0], spans[-1][1] - _TAIL) : spans[-1][1]], text[start:end]):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def last_turn(state: State) -> Site:
    """The last message."""
    return state.in_message(Scope.TURN, last_index(state))


def last_query(state: State) -> Site:
    """The last user message, or the last message where no user spoke."""
    index = state.last("user")
    return last_turn(state) if index is None else state.in_message(Scope.QUERY, index)


def judged_turn(state: State) -> Site:
    """The last message, as the response or the query that it is."""
    index = last_index(state)
    scope = {"assistant": Scope.RESPONSE, "user": Scope.QUERY}.get(state.messages[index].role, Scope.TURN)
    return state.in_message(scope, index)


def first_passage(state: State) -> Site:
    """The first passage; further ones are context."""
    if not state.passages:
        raise UserError("there is no passage to ask about; give passages=[...]")
    return state.in_passage(Scope.PASSAGE, 0)


def last_index(state: State) -> int:
    """Index of the last message; refuses an empty conversation."""
    if not state.messages:
        raise UserError("the conversation is empty; give at least one turn")
    return len(state.messages) - 1


def response_sites(state: State, index: int, find: SentenceFinder = rules) -> tuple[Site, ...]:
    """The sentences of message `index`, in order; a blank line ends a sentence."""
    content = state.messages[index].content
    return tuple(state.in_message(Scope.SENTENCE, index, *span) for span in sentences(content, find))


def source_sites(state: State, find: SentenceFinder = rules) -> tuple[Site, ...]:
    """The sentences of all passages, passage after passage; empty passages have none."""
    return tuple(
        state.in_passage(Scope.SOURCE, index, *span)
        for index, passage in enumerate(state.passages)
        for span in sentences(passage.text, find)
    )


def earlier_sites(state: State, find: SentenceFinder = rules) -> tuple[Site, ...]:
    """The sentences of all turns but the last, turn after turn."""
    return tuple(
        state.in_message(Scope.SOURCE, index, *span)
        for index, message in enumerate(state.messages[:-1])
        for span in sentences(message.content, find)
    )


def merged(state: State, sites: Sequence[Site]) -> tuple[Site, ...]:
    """Sites of passages, none overlapping, with neighbours joined: a quotation of three sentences is one span."""
    joined: list[Site] = []
    for site in sorted(sites, key=lambda site: (site.passage or 0, site.begin)):
        last = joined[-1] if joined else None
        if site.passage is None or last is None or last.passage != site.passage or site.begin < last.end:
            joined.append(site)
            continue
        between = state.passages[site.passage].text[last.end : site.begin]
        if between.strip():
            joined.append(site)
        else:
            joined[-1] = state.in_passage(last.scope, site.passage, last.begin, site.end)
    return tuple(joined)


def cited_spans(
    state: State, scores: Mapping[Site, float], *, share: float = 0.5, most: int = 3
) -> tuple[Citation, ...]:
    """The best sentences of the passages as citations, neighbours merged, in the order of the passages.

    At most so many are cited, and none that has less than a share of the best one's probability.
    """
    ranked = sorted(scores, key=lambda site: -scores[site])[:most]
    chosen = [site for site in ranked if scores[site] >= share * scores[ranked[0]]]
    return tuple(
        Citation(whole, min(1.0, math.fsum(scores[site] for site in chosen if _within(site, whole))))
        for whole in merged(state, chosen)
    )


def _within(inner: Site, outer: Site) -> bool:
    same = (inner.passage, inner.message) == (outer.passage, outer.message)
    return same and outer.begin <= inner.begin and inner.end <= outer.end


def _goes_on(before: str, after: str) -> bool:
    words, rest = before.split(), after.lstrip()
    return bool(words and rest) and words[-1].casefold() in _ABBREVIATIONS and (rest[0].islower() or rest[0].isdigit())


def tag(
    text: str, letter: str, first: int, find: SentenceFinder, *, letters: Collection[str], title: str = ""
) -> tuple[str, list[Span]]:
    r"""A text with a tag in front of each sentence, joined by one space, and the sentences' offsets in the original.

    Tags count from `first`; a title goes in front of the first sentence as `{title}\n`, behind its tag, and is no part
    of any span. `letters` are all that are tags somewhere in the request.
    """
    found = [(begin, end) for begin, end in (find(text) if text.strip() else ()) if text[begin:end].strip()]
    # A splitter may leave white space in front of a text to its first sentence; the model sees it, the span does not.
    sentences = [plain(text[begin:end].rstrip(), letters) for begin, end in found]
    if title and sentences:
        sentences[0] = f"{plain(title, letters)}\n{sentences[0]}"
    tagged = " ".join(f"<{letter}{first + i}> {sentence}" for i, sentence in enumerate(sentences))
    return tagged, [_trimmed(text, begin, end) for begin, end in found]


def _trimmed(text: str, begin: int, end: int) -> Span:
    body = text[begin:end]
    return begin + len(body) - len(body.lstrip()), begin + len(body.rstrip())


def plain(text: str, letters: Collection[str]) -> str:
    """The text with a space in whatever looks like a tag of this request: `<c1>` becomes `< c1>`."""
    if not letters or "<" not in text:
        return text
    return re.sub(rf"<(?=[{''.join(sorted(letters))}]\d+>)", "< ", text)


def number_of(name: object) -> int | None:
    """The number of a tag that a model wrote as `<c7>`, `c7`, `"7"` or 7; None for anything else."""
    if isinstance(name, int) and not isinstance(name, bool):
        return name
    match = re.fullmatch(r"\s*<?[a-z]?(-?\d{1,9})>?\s*", name) if isinstance(name, str) else None
    return int(match.group(1)) if match else None


LAST, DOCUMENTS, EARLIER = "last_message", "documents", "all_but_last_message"
"""What can carry sentence tags."""


@dataclass(frozen=True, slots=True)
class Document:
    """A passage that is shown."""

    index: int  # its place in `State.passages`
    id: str  # its id
    text: str  # title and text, tagged where the dialect says so; a blank passage is shown without its title


@dataclass(frozen=True, slots=True)
class NumberedState:
    """A state as a request shows it."""

    messages: tuple[Message, ...]  # turns of the caller
    documents: tuple[Document, ...]  # every passage, blank ones too
    sites: tuple[Site, ...]  # sentences that the model calls by number, of the last turn
    sources: tuple[Site, ...]  # sentences that it may cite by number

    def only(self, name: str) -> Document:
        """The one document that is not blank; refuses several, or none, for the intrinsic or adapter of this name."""
        given = [document for document in self.documents if document.text.strip()]
        if len(given) != 1:
            raise UserError(f"{name} asks about one passage at a time, not {len(given)}; give it one")
        return given[0]


def number_sentences(tags: Mapping[str, str], state: State, find: SentenceFinder) -> NumberedState:
    """Number the sentences: of documents first, of earlier turns with the same counter, of the last turn from 0."""
    letters = frozenset(tags.values())
    sources: list[Site] = []
    documents: list[Document] = []
    for index, passage in enumerate(state.passages):
        if DOCUMENTS in tags:
            shown, spans = tag(passage.text, tags[DOCUMENTS], len(sources), find, letters=letters, title=passage.title)
            sources += [state.in_passage(Scope.SOURCE, index, *span) for span in spans]
            documents.append(Document(index, passage.id, shown))
        else:
            whole = f"{passage.title}\n{passage.text}" if passage.title and passage.text.strip() else passage.text
            documents.append(Document(index, passage.id, plain(whole, letters)))
    messages = [replace(message, content=plain(message.content, letters)) for message in state.messages]
    last = len(messages) - 1
    if EARLIER in tags:
        for index in range(last):
            shown, spans = tag(state.messages[index].content, tags[EARLIER], len(sources), find, letters=letters)
            sources += [state.in_message(Scope.SOURCE, index, *span) for span in spans]
            messages[index] = replace(messages[index], content=shown)
    sites: tuple[Site, ...] = ()
    if LAST in tags and messages:
        shown, spans = tag(state.messages[last].content, tags[LAST], 0, find, letters=letters)
        sites = tuple(state.in_message(Scope.SENTENCE, last, *span) for span in spans)
        messages[last] = replace(messages[last], content=shown)
    return NumberedState(tuple(messages), tuple(documents), sites, tuple(sources))
