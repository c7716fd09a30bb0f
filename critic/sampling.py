"""Draws cases for a teacher from input-output pairs, group by group (paper, section 3.2.1 and appendix A.1)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from critic.augment.algorithm import segments
from critic.cases import Case, Question, digest
from critic.pairs import Pair
from critic.tables import counted, markdown, quoted
from critic.teacher.run import shown
from retrieval.errors import UserError
from retrieval.passage import Passage, Retriever
from retrieval.splitting import SentenceFinder

SHORTEST = 12
"""Characters below which a sentence joins its neighbour, as in the augmentation."""


class Evidence(StrEnum):
    """Where the passage of a case comes from."""

    NONE = "none"
    GOLD = "gold"  # known to support the pair
    FIRST = "first"  # the best of a search
    FOUND = "found"  # any of a search
    OTHER = "other"  # known to support another pair


class Output(StrEnum):
    """What is judged of the response."""

    NONE = "none"
    SENTENCE = "sentence"
    WHOLE = "whole"
    BEGINNING = "beginning"  # the first half of its sentences
    OTHER = "other"  # the output of another pair


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of case.

    Attributes:
        name: unique; becomes `rule` of the rows.
        group: what is judged.
        evidence: where its passage comes from.
        output: what of the response is shown.
    """

    name: str
    group: str
    evidence: Evidence = Evidence.NONE
    output: Output = Output.NONE

    @property
    def searches(self) -> bool:
        """Whether it needs a retriever."""
        return self.evidence in (Evidence.FIRST, Evidence.FOUND)


RULES: tuple[Rule, ...] = (
    Rule("retrieve_for_instruction", "Retrieve"),
    Rule("retrieve_for_sentence_with_gold_passage", "Retrieve", Evidence.GOLD, Output.SENTENCE),
    Rule("retrieve_for_sentence_with_first_passage", "Retrieve", Evidence.FIRST, Output.SENTENCE),
    Rule("isrel_of_gold_passage", "IsRel", Evidence.GOLD),
    Rule("isrel_of_found_passage", "IsRel", Evidence.FOUND),
    Rule("isrel_of_other_passage", "IsRel", Evidence.OTHER),
    Rule("issup_by_gold_passage", "IsSup", Evidence.GOLD, Output.SENTENCE),
    Rule("issup_by_found_passage", "IsSup", Evidence.FOUND, Output.SENTENCE),
    Rule("issup_by_other_passage", "IsSup", Evidence.OTHER, Output.SENTENCE),
    Rule("isuse_of_output", "IsUse", output=Output.WHOLE),
    Rule("isuse_of_beginning", "IsUse", output=Output.BEGINNING),
    Rule("isuse_of_other_output", "IsUse", output=Output.OTHER),
)
"""All rules. Those with a found or first passage need a retriever."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A case that may still lack its passage.

    Attributes:
        pair: what it is made of.
        case: what to judge, without a passage that has to be searched.
        query: what to search for; empty where nothing is searched.
    """

    pair: Pair
    case: Case
    query: str = ""


def draft(rule: Rule, pair: Pair, other: Pair, find: SentenceFinder, rng: random.Random) -> Draft | None:
    """A case by a rule, or None where the pair offers none.

    Args:
        rule: what kind of case.
        pair: what to make it of.
        other: another pair, for rules that want something foreign.
        find: gives the sentence spans of a text.
        rng: of this pair and rule.
    """
    spans = segments(pair.output, find(pair.output), SHORTEST)
    start, end = rng.choice(spans)
    sentence = pair.output[start:end].strip()
    query = pair.output.strip() if rule.evidence is Evidence.FIRST else sentence
    case = Case(rule.group, pair.instruction)
    if rule.group != "IsUse" and (rule.output is Output.SENTENCE or rule.evidence is not Evidence.NONE):
        case = replace(case, preceding=pair.output[:start].strip())
    match rule.output:
        case Output.SENTENCE:
            case = replace(case, output=sentence)
        case Output.WHOLE:
            case = replace(case, output=pair.output)
        case Output.BEGINNING if len(spans) > 1:
            case = replace(case, output=pair.output[: spans[len(spans) // 2 - 1][1]].strip())
        case Output.OTHER if other.output.strip() != pair.output.strip():
            case = replace(case, output=other.output)
        case Output.BEGINNING | Output.OTHER:
            return None
    if rule.searches:
        return Draft(pair, case, f"{pair.instruction} {query}")
    if rule.evidence is not Evidence.NONE:
        known = {passage.text for passage in pair.passages}
        choices = pair.passages if rule.evidence is Evidence.GOLD else other.passages
        usable = [p for p in choices if p.text.strip() and (rule.evidence is Evidence.GOLD or p.text not in known)]
        if not usable:
            return None
        case = replace(case, evidence=rng.choice(usable))
    return Draft(pair, case)


def complete(rule: Rule, drafted: Draft, found: Sequence[Passage], rng: random.Random) -> Question | None:
    """The question of a draft, with a passage of its search where it wants one; None where nothing was found."""
    case = drafted.case
    if rule.searches:
        usable = [passage for passage in found if passage.text.strip()]
        if not usable:
            return None
        case = replace(case, evidence=usable[0] if rule.evidence is Evidence.FIRST else rng.choice(usable))
    return Question(f"{drafted.pair.id}/{rule.name}", case, drafted.pair.dataset, rule.name)


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


EXAMPLES = 2
"""Cases shown of each rule."""


def by_rule(sample: Sample) -> list[tuple[object, ...]]:
    """(group, rule, cases)."""
    return counted((question.case.group, question.rule) for question in sample.questions)


def report(sample: Sample) -> str:
    """The whole report."""
    short = sample.short()
    groups = [(group, count, count - short.get(group, 0)) for group, count in sample.wanted.items()]
    sets = counted((q.case.group, q.rule, q.dataset) for q in sample.questions)
    parts = [
        "# Cases for a teacher\n",
        markdown(("group", "wanted", "drawn"), groups),
        "## Cases by rule\n",
        markdown(("group", "rule", "cases"), by_rule(sample)),
        "## Cases by rule and data set\n",
        markdown(("group", "rule", "data set", "cases"), sets),
        "## Pairs that offered no new case\n",
        markdown(("rule", "pairs"), sorted(sample.left_out.items())),
        "## Examples\n",
        *_examples(sample),
    ]
    return "\n".join(parts)


def _examples(sample: Sample) -> Iterator[str]:
    for group, rule, _ in by_rule(sample):
        yield f"### {group}: {rule}\n"
        cases = [question.case for question in sample.questions if question.rule == rule]
        yield from (quoted(shown(case)) for case in cases[:EXAMPLES])
