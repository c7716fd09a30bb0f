"""Draws cases for a teacher from input-output pairs, group by group (paper, section 3.2.1 and appendix A.1). Seeded.

The cases are those that the augmentation asks a critic about (Algorithm 3). With reference outputs and the best
passages alone nearly all labels would be the same (a useful output, a relevant passage). So each group also has rules
whose cases tend to other labels. Each rule of a group gets an equal share (the paper draws at random), and what a
rule cannot give goes to the others. Every pair and rule has a random generator of its own.
"""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal, TypeAlias

from critic.augment.algorithm import segments
from critic.cases import Case, digest
from critic.pairs import Pair
from critic.targets import counted
from selfrag.interface import Passage, Retriever, SentenceFinder, UserError, validate
from selfrag.render.tables import markdown_table, quoted

SHORTEST = 12
"""Characters below which a sentence joins its neighbour, as in the augmentation."""


SampledEvidence: TypeAlias = Literal["none", "gold", "first", "found", "other"]
"""Where the passage of a case comes from: it supports the pair, is the best or any of a search, or supports another."""

SampledOutput: TypeAlias = Literal["none", "sentence", "whole", "beginning", "other"]
"""What is judged of the response; the beginning is the first half of its sentences, the other is of another pair."""


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """One kind of case."""

    name: str  # becomes `rule` of the rows
    group: str
    evidence: SampledEvidence = "none"
    output: SampledOutput = "none"

    @property
    def searches(self) -> bool:
        """Return whether it needs a retriever."""
        return self.evidence in ("first", "found")


_TOML = files(__package__).joinpath("sampling.toml").read_text(encoding="utf-8")
RULES = tuple(validate(SamplingRule, rule) for rule in tomllib.loads(_TOML)["rule"])
"""All rules. Those with a found or first passage need a retriever."""


def _draft(
    rule: SamplingRule,
    pair: Pair,
    donor: Pair,
    find: SentenceFinder,
    rng: random.Random,
) -> tuple[Case, str] | None:
    """Draw a case by a rule, and what to search for its passage, if anything; None where the pair offers no case.

    `donor` is a pair for rules that want something foreign.
    """
    spans = segments(pair.output, find(pair.output), SHORTEST)
    start, end = rng.choice(spans)
    sentence = pair.output[start:end].strip()
    query = sentence
    if rule.evidence == "first":
        query = pair.output.strip()
    preceding = output = ""
    if rule.group != "IsUse" and (rule.output == "sentence" or rule.evidence != "none"):
        preceding = pair.output[:start].strip()
    match rule.output:
        case "sentence":
            output = sentence
        case "whole":
            output = pair.output
        case "beginning" if len(spans) > 1:
            output = pair.output[: spans[len(spans) // 2 - 1][1]].strip()
        case "other" if donor.output.strip() != pair.output.strip():
            output = donor.output
        case "beginning" | "other":
            return None
    evidence = None
    if rule.evidence in ("gold", "other"):
        known = {passage.text for passage in pair.passages}
        choices = pair.passages if rule.evidence == "gold" else donor.passages
        usable = [
            p
            for p in choices
            if p.text.strip() and (rule.evidence == "gold" or p.text not in known)
        ]
        if not usable:
            return None
        evidence = rng.choice(usable)
    question = Case.of(
        rule.group,
        pair.instruction,
        preceding,
        output,
        evidence,
        id=f"{pair.id}/{rule.name}",
        dataset=pair.dataset,
        rule=rule.name,
    )
    return question, f"{pair.instruction} {query}" if rule.searches else ""


WAVE = 256
"""Pairs whose searches go to the retriever in one batch."""


@dataclass(frozen=True, slots=True)
class CaseSample:
    """What was drawn."""

    # in a seeded random order, so that a run that ends early has seen something of all
    questions: list[Case]
    requested: Mapping[str, int]  # group -> cases asked for
    # rule -> pairs that offered no case, or one that had been drawn already
    left_out: Mapping[str, int]

    def short(self) -> dict[str, int]:
        """Group -> cases lacking."""
        drawn = Counter(question.group for question in self.questions)
        return {
            group: count - drawn[group]
            for group, count in self.requested.items()
            if drawn[group] < count
        }

    def by_rule(self) -> list[tuple[object, ...]]:
        """(group, rule, cases)."""
        return counted((question.group, question.rule) for question in self.questions)


def draw(
    pairs: Sequence[Pair],
    requested: Mapping[str, int],
    find: SentenceFinder,
    *,
    seed: int = 0,
    retriever: Retriever | None = None,
    passages: int = 5,
) -> CaseSample:
    """Draw `requested` cases of each group; `find` gives sentence spans, `passages` is how many a search brings.

    Without a retriever, rules that search are left out.
    """
    if not pairs:
        raise UserError(
            "there are no pairs to draw from; give a file with at least one"
        )
    left_out: Counter[str] = Counter()
    drawn: list[Case] = []
    for group, count in requested.items():
        usable = [
            rule
            for rule in RULES
            if rule.group == group and (retriever is not None or not rule.searches)
        ]
        if not usable:
            raise UserError(
                f"no rule gives cases of {group} without a retriever; give an index, or leave {group} out"
            )
        streams = {
            rule.name: _stream(rule, pairs, find, seed, retriever, passages, left_out)
            for rule in usable
        }
        drawn += _share(streams, count, left_out)
    random.Random(f"{seed}/order").shuffle(drawn)  # noqa: S311 - no secret
    return CaseSample(drawn, dict(requested), dict(left_out))


def _share(
    streams: dict[str, Iterator[Case]], count: int, left_out: Counter[str]
) -> list[Case]:
    """Take from each stream in turn, until there are enough or none has any left; the same case is taken once."""
    taken: dict[str, Case] = {}
    while streams and len(taken) < count:
        for name in list(streams):
            if len(taken) == count:
                break
            question = next(streams[name], None)
            if question is None:
                del streams[name]
            elif (key := digest(question)) in taken:
                left_out[name] += 1
            else:
                taken[key] = question
    return list(taken.values())


def _stream(
    rule: SamplingRule,
    pairs: Sequence[Pair],
    find: SentenceFinder,
    seed: int,
    retriever: Retriever | None,
    passages: int,
    left_out: Counter[str],
) -> Iterator[Case]:
    """Cases by one rule, one a pair, pairs in a random order; searches go out in batches."""
    order = list(pairs)
    donors = [pair for pair in pairs if pair.passages or rule.evidence != "other"]
    random.Random(f"{seed}/{rule.name}").shuffle(order)  # noqa: S311 - no secret
    for begin in range(0, len(order), WAVE):
        wave = []
        for pair in order[begin : begin + WAVE]:
            rng = random.Random(f"{seed}/{rule.name}/{pair.id}")  # noqa: S311 - no secret
            wave.append(
                (_draft(rule, pair, rng.choice(donors or pairs), find, rng), rng)
            )
        queries = [
            drafted[1] for drafted, _ in wave if drafted is not None and drafted[1]
        ]
        results = iter(
            retriever(queries, passages) if retriever is not None and queries else ()
        )
        for drafted, rng in wave:
            question, query = drafted or (None, "")
            if question is not None and query:
                hits = [
                    passage for passage in next(results, ()) if passage.text.strip()
                ]
                question = _with_hit(question, hits, rule, rng)
            if question is None:
                left_out[rule.name] += 1
            else:
                yield question


def _with_hit(
    question: Case,
    hits: Sequence[Passage],
    rule: SamplingRule,
    rng: random.Random,
) -> Case | None:
    """Return a case with the first or any passage of its search; None where there is none."""
    if not hits:
        return None
    evidence = hits[0] if rule.evidence == "first" else rng.choice(hits)
    return replace(question, state=replace(question.state, passages=(evidence,)))


def report(sample: CaseSample, examples: int = 2) -> str:
    """Return a sample as Markdown: counts by group, rule and data set, what was short, and examples of each rule."""
    short = sample.short()
    groups = [
        (group, count, count - short.get(group, 0))
        for group, count in sample.requested.items()
    ]
    sets = counted((q.group, q.rule, q.dataset) for q in sample.questions)
    parts = [
        "# Cases for a teacher\n",
        markdown_table(("group", "wanted", "drawn"), groups),
        "## Cases by rule\n",
        markdown_table(("group", "rule", "cases"), sample.by_rule()),
        "## Cases by rule and data set\n",
        markdown_table(("group", "rule", "data set", "cases"), sets),
        "## Pairs that offered no new case\n",
        markdown_table(("rule", "pairs"), sorted(sample.left_out.items())),
        "## Examples\n",
    ]
    for group, rule, _ in sample.by_rule():
        cases = [question for question in sample.questions if question.rule == rule]
        parts += [
            f"### {group}: {rule}\n",
            *(quoted(case.shown()) for case in cases[:examples]),
        ]
    return "\n".join(parts)
