"""Places of a conversation that are judged: its sentences, turns and passages, as sites in the original strings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from retrieval.sentences import SentenceFinder, Span, sentence_finder, sentences
from selfrag.common.errors import UserError
from selfrag.reflection.findings import Citation
from selfrag.reflection.inputs import JudgeInput, Site, SiteKind
from selfrag.reflection.labels import Role

# Abbreviations that spaCy's English rules end a sentence after, though a small letter or a figure follows.
_ABBREVIATIONS = frozenset(
    {
        "al.",
        "approx.",
        "c.",
        "ca.",
        "cf.",
        "esp.",
        "etc.",
        "fig.",
        "no.",
        "pp.",
        "vol.",
        "vs.",
    }
)
_TAIL = 20
"""Characters at the end of a sentence that are looked at: more than the longest abbreviation and white space."""


@cache
def _finder() -> SentenceFinder:
    return sentence_finder("rules")


def rules(text: str) -> Sequence[Span]:
    """Return sentence spans by spaCy's rules, loaded at the first call; "et al. moved" stays in one sentence.

    White space belongs to one of the neighbours; `sentences` of `retrieval.sentences` trims it.
    """
    spans: list[Span] = []
    for start, end in _finder()(text):
        if spans and _goes_on(
            text[max(spans[-1][0], spans[-1][1] - _TAIL) : spans[-1][1]],
            text[start:end],
        ):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def last_turn(state: JudgeInput) -> Site:
    """Return the last message."""
    return state.in_message(SiteKind.TURN, last_index(state))


def last_query(state: JudgeInput) -> Site:
    """Return the last user message, or the last message where no user spoke."""
    index = state.last("user")
    return (
        last_turn(state) if index is None else state.in_message(SiteKind.QUERY, index)
    )


def judged_turn(state: JudgeInput) -> Site:
    """Return the last message, as the response or the query that it is."""
    index = last_index(state)
    scope = {"assistant": SiteKind.RESPONSE, "user": SiteKind.QUERY}.get(
        state.messages[index].role, SiteKind.TURN
    )
    return state.in_message(scope, index)


def judged_site(scope: SiteKind, state: JudgeInput) -> Site:
    """Return the site of an intrinsic that judges one thing: a passage, the last user turn, or the last turn."""
    if scope is SiteKind.PASSAGE and state.passages:
        return state.in_passage(SiteKind.PASSAGE, 0)
    return (
        last_query(state)
        if scope in (SiteKind.QUERY, SiteKind.PASSAGE)
        else judged_turn(state)
    )


def role_site(role: Role, state: JudgeInput) -> Site:
    """Return the site of a judge that says one thing: the first passage for relevance, else the last turn."""
    return judged_site(
        SiteKind.PASSAGE if role is Role.RELEVANCE else SiteKind.TURN, state
    )


def first_passage(state: JudgeInput) -> Site:
    """Return the first passage; further ones are context."""
    if not state.passages:
        raise UserError("there is no passage to ask about; give passages=[...]")
    return state.in_passage(SiteKind.PASSAGE, 0)


def last_index(state: JudgeInput) -> int:
    """Return the index of the last message; refuse an empty conversation."""
    if not state.messages:
        raise UserError("the conversation is empty; give at least one turn")
    return len(state.messages) - 1


def response_sites(
    state: JudgeInput, index: int, find: SentenceFinder = rules
) -> tuple[Site, ...]:
    """Return the sentences of message `index`, in order; a blank line ends a sentence."""
    content = state.messages[index].content
    return tuple(
        state.in_message(SiteKind.SENTENCE, index, *span)
        for span in sentences(content, find)
    )


def source_sites(state: JudgeInput, find: SentenceFinder = rules) -> tuple[Site, ...]:
    """Return the sentences of all passages, passage after passage; empty passages have none."""
    return tuple(
        state.in_passage(SiteKind.SOURCE, index, *span)
        for index, passage in enumerate(state.passages)
        for span in sentences(passage.text, find)
    )


def earlier_sites(state: JudgeInput, find: SentenceFinder = rules) -> tuple[Site, ...]:
    """Return the sentences of all turns but the last, turn after turn."""
    return tuple(
        state.in_message(SiteKind.SOURCE, index, *span)
        for index, message in enumerate(state.messages[:-1])
        for span in sentences(message.content, find)
    )


def merged(state: JudgeInput, sites: Sequence[Site]) -> tuple[Site, ...]:
    """Return sites of passages with neighbours joined, none overlapping: a quotation of three sentences is one span."""
    joined: list[Site] = []
    for site in sorted(sites, key=lambda site: (site.passage or 0, site.begin)):
        last = joined[-1] if joined else None
        if (
            site.passage is None
            or last is None
            or last.passage != site.passage
            or site.begin < last.end
        ):
            joined.append(site)
            continue
        between = state.passages[site.passage].text[last.end : site.begin]
        if between.strip():
            joined.append(site)
        else:
            joined[-1] = state.in_passage(
                last.scope, site.passage, last.begin, site.end
            )
    return tuple(joined)


def cited_spans(
    state: JudgeInput,
    scores: Mapping[Site, float],
    *,
    share: float = 0.5,
    most: int = 3,
) -> tuple[Citation, ...]:
    """Return the best sentences of the passages as citations, neighbours merged, in the order of the passages.

    At most so many are cited, and none that has less than a share of the best one's probability.
    """
    ranked = sorted(scores, key=lambda site: -scores[site])[:most]
    chosen = [site for site in ranked if scores[site] >= share * scores[ranked[0]]]
    citations = []
    for span in merged(state, chosen):
        total = math.fsum(scores[site] for site in chosen if _within(site, span))
        citations.append(Citation(span, min(1.0, total)))
    return tuple(citations)


def _within(inner: Site, outer: Site) -> bool:
    same = (inner.passage, inner.message) == (outer.passage, outer.message)
    return same and outer.begin <= inner.begin and inner.end <= outer.end


def _goes_on(before: str, after: str) -> bool:
    words = before.split()
    first = after.lstrip()[:1]
    return (
        bool(words)
        and words[-1].casefold() in _ABBREVIATIONS
        and (first.islower() or first.isdigit())
    )
