"""Answers of several segments: summaries of several sources, and introductions of corpus articles by sentence."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from retrieval.passage import Passage
from scripts.demo_model.demo_rows.drafts import (
    Cutter,
    Draft,
    abstaining,
    continued,
    detokenize,
    long_form,
    sample,
    search,
    segment,
    sentences,
)
from scripts.demo_model.demo_rows.sources import Sources
from selfrag.evaluation.normalisation import contains_any, normalise
from selfrag.training.rows import TargetPart

_PERSON = re.compile(
    r"\((?:[^()]{0,60}\b)?(?:born|\d{1,2} \w+ \d{4}|\w+ \d{1,2}, \d{4})[^()]*\) (?:is|was) an? "
)
_ABOUT_ANYTHING = (
    "Tell me about {}.",
    "What is {}?",
    "Give me an overview of {}.",
    "What do you know about {}?",
    "Explain {}.",
    "Tell me something about {}.",
    "what is {}",
    "Write a short introduction to {}.",
)
_ABOUT_PEOPLE = (
    "Who was {}?",
    "Tell me about {}.",
    "Write a short biography of {}.",
    "who is {}",
    "What is {} known for?",
    "Tell me a bio of {}.",
)


@dataclass(frozen=True, slots=True)
class Quota:
    """Rows of each kind at most; the defaults are the published demo mixture."""

    introductions: int = 420
    two_passages: int = 130
    irrelevant: int = 150
    summaries: int | None = None


def drafts(
    sources: Sources, quota: Quota, cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    """Yield all rows with several segments, and their irrelevant counterparts."""
    summaries = list(_summaries(sources, cut))
    yield from (
        summaries
        if quota.summaries is None
        else sample(summaries, quota.summaries, rng)
    )
    leads = [p for p in sources.corpus.values() if _introduces(p)]
    rng.shuffle(leads)
    by_title: dict[str, list[Passage]] = {}
    for passage in sources.corpus.values():
        by_title.setdefault(passage.title, []).append(passage)
    several = [p for p in leads if len(by_title[p.title]) > 1]
    chosen = several[: quota.two_passages]
    for lead in chosen:
        second = next(p for p in by_title[lead.title] if p.id != lead.id)
        if (target := _two_passages(lead, second, cut, rng)) is not None:
            yield Draft("wiki/two_passages", _ask(lead, rng), target)
    taken = {p.title for p in chosen}
    single = [p for p in leads if p.title not in taken]
    for lead in single[: quota.introductions]:
        if (target := _introduction(lead, cut, rng)) is not None:
            yield Draft("wiki/introduction", _ask(lead, rng), target)
    yield from sample(
        _irrelevant(sources, [*chosen, *single[: quota.introductions]], cut, rng),
        quota.irrelevant,
        rng,
    )


def _summaries(sources: Sources, cut: Cutter) -> Iterator[Draft]:
    """Yield human answers over several sources: each sentence goes to the source with most of its words."""
    useful = {
        (row.instruction, row.output): int(row.label)
        for row in sources.critiques
        if row.rule == "share_of_short_answers_covered"
    }
    for pair in sources.pairs:
        if pair.dataset != "quotesum":
            continue
        passages = pair.passages
        parts: list[tuple[TargetPart, ...]] = []
        last: Passage | None = None
        shown = 0  # passages
        for sentence in sentences(pair.output):
            source = max(passages, key=partial(_overlap, sentence))
            if _overlap(sentence, source) < 0.5:
                break
            if source == last:
                parts.append(continued(sentence))
            else:
                parts.append(segment(cut(source), sentence))
                shown += 1
            last = source
        else:
            utility = useful.get((pair.instruction, pair.output), 5)
            if shown <= 3:
                target = long_form(parts, utility=utility)
                yield Draft("quotesum/summary", pair.instruction, target)


def _introduction(
    lead: Passage, cut: Cutter, rng: random.Random
) -> tuple[TargetPart, ...] | None:
    passage = cut(lead, _opening(lead))
    sentences_said = _clean(passage)[: rng.choice((1, 2, 2, 3))]
    if not sentences_said:
        return None
    return long_form(
        [
            segment(passage, sentences_said[0]),
            *(continued(sentence) for sentence in sentences_said[1:]),
        ]
    )


def _two_passages(
    lead: Passage, second: Passage, cut: Cutter, rng: random.Random
) -> tuple[TargetPart, ...] | None:
    lead_cut, second_cut = cut(lead, _opening(lead)), cut(second)
    opening = _clean(lead_cut)
    news = [
        sentence for sentence in _clean(second_cut) if _overlap(sentence, lead) < 0.6
    ]
    if not opening or not news:
        return None
    parts = [segment(lead_cut, opening[0])]
    if len(opening) > 1 and rng.random() < 0.5:
        parts.append(continued(opening[1]))
    return long_form([*parts, segment(second_cut, news[0])])


def _irrelevant(
    sources: Sources, leads: list[Passage], cut: Cutter, rng: random.Random
) -> Iterator[Draft]:
    names = [_name(lead) for lead in leads]
    for lead, name, passages in zip(
        leads, names, search(sources.corpus, names, 10), strict=True
    ):
        hard = [
            p
            for p in passages
            if p.title != lead.title and not contains_any(f"{p.title} {p.text}", [name])
        ]
        if hard:
            yield Draft("wiki/bm25", _ask(lead, rng), abstaining(cut(hard[0])))


def _introduces(passage: Passage) -> bool:
    """Return whether the passage opens like an encyclopaedia entry on its title, and says enough to be retold."""
    name = re.escape(_name(passage))
    opening = re.match(
        rf"(?:The |An? )?{name}\b[^.]{{0,120}}? (?:is|was|are|were) ", passage.text
    )
    return (
        opening is not None
        and len(passage.text.split()) >= 40
        and len(_name(passage).split()) <= 5
    )


def _opening(passage: Passage) -> str:
    """Return the first words, so that a cut keeps the beginning."""
    return passage.text[:40]


def _name(passage: Passage) -> str:
    return passage.title.split(" (")[0]


def _ask(lead: Passage, rng: random.Random) -> str:
    templates = _ABOUT_PEOPLE if _PERSON.search(lead.text[:200]) else _ABOUT_ANYTHING
    return rng.choice(templates).format(_name(lead))


def _clean(passage: Passage) -> list[str]:
    """Return the passage's first good sentences; one that is cut off or very long ends them."""
    good: list[str] = []
    for sentence in map(detokenize, sentences(passage.text)):
        if not (6 <= len(sentence.split()) <= 45 and sentence[-1] in ".!?"):
            break
        good.append(sentence)
    return good


def _overlap(sentence: str, passage: Passage) -> float:
    """Return the share of the sentence's words that occur in the passage."""
    words = normalise(sentence).split()
    known = set(normalise(f"{passage.title} {passage.text}").split())
    return sum(word in known for word in words) / max(1, len(words))
