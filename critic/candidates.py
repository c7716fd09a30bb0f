"""How a pair becomes a case to be judged: one rule a kind of case. Pure; passages and sentences are given.

The cases are those that the augmentation asks a critic about (Algorithm 3), so that it is trained on what it will see:
the instruction for the first Retrieve, sentences with a passage, passages, whole outputs. Drawn from reference outputs
and the best passages alone, nearly all labels would be the same (a useful output, a relevant passage), so each group
also has rules whose cases tend to other labels. Rules only propose; the teacher judges.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from critic.augment.algorithm import segments
from critic.cases import Case
from critic.pairs import Pair
from critic.teacher.questions import Question
from retrieval.passage import Passage
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
