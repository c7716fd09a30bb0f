"""Drawing cases for a teacher from input-output pairs, group by group (paper, section 3.2.1 and appendix A.1). Seeded.

The paper draws at random from the training data for each group. Here each rule of a group gets an equal share, and
what a rule cannot give goes to the others. Every pair and rule has a random generator of its own, so the same seed
gives the same cases, and unknown data sets need nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from critic.candidates import RULES, Evidence, Rule, complete, draft
from critic.pairs import Pair
from critic.teacher.questions import Question, digest
from retrieval.errors import UserError
from retrieval.passage import Passage, Retriever
from retrieval.splitting import SentenceFinder

WAVE = 256
"""Pairs whose searches go to the retriever in one batch."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was drawn.

    Attributes:
        questions: in a seeded random order, so that a run that ends early has seen something of all.
        wanted: group -> cases asked for.
        left_out: rule -> pairs that offered no case, or one that had been drawn already.
    """

    questions: list[Question]
    wanted: Mapping[str, int]
    left_out: Mapping[str, int]

    def short(self) -> dict[str, int]:
        """Group -> cases lacking."""
        found = Counter(question.case.group for question in self.questions)
        return {group: count - found[group] for group, count in self.wanted.items() if found[group] < count}


def draw(
    pairs: Sequence[Pair],
    wanted: Mapping[str, int],
    find: SentenceFinder,
    *,
    seed: int = 0,
    retriever: Retriever | None = None,
    passages: int = 5,
    rules: Sequence[Rule] = RULES,
) -> Sample:
    """Draw cases.

    Args:
        pairs: with distinct ids, in a fixed order.
        wanted: group -> number of cases.
        find: gives the sentence spans of a text.
        seed: of everything random.
        retriever: for rules that search; without one they are left out.
        passages: passages a search.
        rules: the kinds of cases.

    Raises:
        UserError: no pairs, or no rule for a group that is wanted.
    """
    if not pairs:
        raise UserError("there are no pairs to draw from; give a file with at least one")
    left_out: Counter[str] = Counter()
    drawn: list[Question] = []
    for group, count in wanted.items():
        usable = [rule for rule in rules if rule.group == group and (retriever is not None or not rule.searches)]
        if not usable:
            raise UserError(f"no rule gives cases of {group} without a retriever; give an index, or leave {group} out")
        streams = {rule.name: _stream(rule, pairs, find, seed, retriever, passages, left_out) for rule in usable}
        drawn += _share(streams, count, left_out)
    random.Random(f"{seed}/order").shuffle(drawn)  # noqa: S311 - no secret
    return Sample(drawn, dict(wanted), dict(left_out))


def _share(streams: dict[str, Iterator[Question]], count: int, left_out: Counter[str]) -> list[Question]:
    """Take from each stream in turn, until there are enough or none has any left; the same case is taken once."""
    taken: list[Question] = []
    seen: set[str] = set()
    streams = dict(streams)
    while streams and len(taken) < count:
        for name in list(streams):
            if len(taken) == count:
                break
            question = next(streams[name], None)
            if question is None:
                del streams[name]
            elif (key := digest(question.case)) in seen:
                left_out[name] += 1
            else:
                seen.add(key)
                taken.append(question)
    return taken


def _stream(
    rule: Rule,
    pairs: Sequence[Pair],
    find: SentenceFinder,
    seed: int,
    retriever: Retriever | None,
    passages: int,
    left_out: Counter[str],
) -> Iterator[Question]:
    """Cases by one rule, one a pair, pairs in a random order; searches go out in batches."""
    order = list(pairs)
    donors = [pair for pair in pairs if pair.passages] if rule.evidence is Evidence.OTHER else pairs
    random.Random(f"{seed}/{rule.name}").shuffle(order)  # noqa: S311 - no secret
    for begin in range(0, len(order), WAVE):
        wave = []
        for pair in order[begin : begin + WAVE]:
            rng = random.Random(f"{seed}/{rule.name}/{pair.id}")  # noqa: S311 - no secret
            wave.append((draft(rule, pair, rng.choice(donors or pairs), find, rng), rng))
        queries = [drafted.query for drafted, _ in wave if drafted is not None and drafted.query]
        found = iter(retriever(queries, passages)) if retriever is not None and queries else iter(())
        for drafted, rng in wave:
            hits: Sequence[Passage] = next(found, ()) if drafted is not None and drafted.query else ()
            question = None if drafted is None else complete(rule, drafted, hits, rng)
            if question is None:
                left_out[rule.name] += 1
            else:
                yield question
