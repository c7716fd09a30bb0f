"""A generation as answer, citations and explanation, what the explanation claims, and the scores of the reply.

Generations are read strictly, and nothing that a model wrote raises an error. A citation is a pair of square brackets
that holds context ids, separated by commas or semicolons, and nothing else. An id that was not given is a wrong
citation, and so are brackets with anything else in them. A claim that cannot be read is None, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from selfrag.evaluation.metrics.answers import (
    answer_recall,
    answer_recall_words,
    sets_of,
)
from selfrag.evaluation.metrics.registry import Part, harmonic
from selfrag.evaluation.normalisation import contains_any, normalise
from selfrag.experiments.self_interpretation.prompts import LABELS
from selfrag.experiments.self_interpretation.questions import Trial
from selfrag.interface import Item

_BRACKETS = re.compile(r"\[([^\[\]\n]*)\]")
_HEADING = re.compile(
    r"^[^\w\n]*(?:explanation|reason(?:ing)?|why|because)\b[^\w\n:]*[:\n]",
    re.IGNORECASE | re.MULTILINE,
)
_LIST_ITEM = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s")
_BEGINS = re.compile(
    r"(?<=[.!?\]])\s+(?=(?:I (?:think|believe|would|gave|chose|followed)|My answer|This (?:is|answer|would)|That is why"
    r"|The (?:answer|reason|order|same|context|passage)|If the|Even if|Because|Since|Based on|According|Regardless"
    r"|It would|No(?:,|thing)|Context)\b)"
)
_BECAUSE = re.compile(r"(?:,|(?<![,\s]))\s+because\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GridReply:
    """A generation, taken apart; ids are given context ids, each once, in order."""

    answer: str  # citations included
    # None where none was asked for or none can be told apart
    explanation: str | None = None
    cited: tuple[str, ...] = ()  # by the answer
    wrong: tuple[str, ...] = ()  # what else stands in brackets in the answer
    explained: tuple[str, ...] = ()  # in the explanation, in brackets or not
    # the model went on with lines of the prompt, which are left out
    ran_on: bool = False

    @property
    def answer_text(self) -> str:
        """Return the answer without brackets."""
        return " ".join(_BRACKETS.sub(" ", self.answer).split())


def read_reply(
    generation: str,
    ids: Collection[str],
    *,
    explains: bool,
    ends: Collection[str] = (),
) -> GridReply:
    """Take a generation apart; `ids` are the context ids of the prompt.

    Without `explains` all is answer. A line that begins like one of the prompt or of `ends` ends the model's own text.
    """
    text = generation.strip().removeprefix("ANSWER:").strip()
    lines, prompt = text.splitlines(), (*LABELS, *ends)
    own_text = text
    for number, line in enumerate(lines):
        if line.lstrip().startswith(prompt):
            own_text = "\n".join(lines[:number]).strip()
            break
    answer, explanation = _split(own_text) if explains else (own_text, None)
    cited, wrong = citations(answer, ids)
    explained = () if explanation is None else _named(explanation, ids)
    return GridReply(
        answer, explanation, cited, wrong, explained, ran_on=len(own_text) < len(text)
    )


def citations(
    text: str, ids: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return right and wrong citations of a text, see `GridReply`; empty brackets are none."""
    right: dict[str, None] = {}
    wrong: dict[str, None] = {}
    for inside in _BRACKETS.findall(text):
        for name in map(str.strip, re.split(r"[,;]", inside)):
            if name:
                (right if name in ids else wrong)[name] = None
    return tuple(right), tuple(wrong)


def _named(text: str, ids: Collection[str]) -> tuple[str, ...]:
    """Return the ids that occur in a text as whole words, in order of first occurrence."""
    places = []
    for name in ids:
        match = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
        if match is not None:
            places.append((match.start(), name))
    return tuple(name for _, name in sorted(places))


def _split(text: str) -> tuple[str, str | None]:
    """Return answer and explanation; None where they cannot be told apart.

    In this order: at a heading such as `Explanation:`, at the first blank line, at the first line that continues no
    list, at a sentence that begins as explanations do, at `because`.
    """
    if heading := _HEADING.search(text):
        before = text[: heading.start()].split("\n")
        # a line of dashes or stars belongs to the heading
        while before and not re.search(r"\w", before[-1]):
            before.pop()
        return _parts("\n".join(before), text[heading.end() :], text)
    paragraphs = re.split(r"\n\s*\n", text, maxsplit=1)
    if len(paragraphs) == 2:
        return _parts(paragraphs[0], paragraphs[1], text)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if number and not _LIST_ITEM.match(line):
            answer = "\n".join(lines[:number])
            return _parts(answer, "\n".join(lines[number:]), text)
    for pattern in (_BEGINS, _BECAUSE):
        if match := pattern.search(text):
            return _parts(
                text[: match.start()], text[match.start() :].lstrip(" ,"), text
            )
    return text, None


def _parts(before: str, after: str, text: str) -> tuple[str, str | None]:
    if not before.strip() or not after.strip():
        return text.strip(), None
    return before.strip(), after.strip()


class Claim(StrEnum):
    """What a counterfactual explanation says that another order does to the answer."""

    SAME = "same"
    CHANGES = "changes"


_NOT_SAME = re.compile(
    r"\b(?:not|(?:would|could|might|wo)nt|never) (?:\w+ ){0,3}?same(?: answer)?\b"
)
_SAME = re.compile(
    r"\b(?:same|unchanged|regardless|irrelevant|independent of"
    r"|(?:not|(?:would|could|does|do|did|is|wo)nt|never|no) (?:\w+ ){0,3}?"
    r"(?:change[sd]?|changing|affect(?:s|ed)?|matter(?:s|ed)?|differ(?:s|ed)?|different(?:ly)?|difference"
    r"|depend(?:s|ed)?|influence[sd]?|impact(?:s|ed)?|altered|alter)"
    r"|still (?:be|have|answer|say|give|is|the))\b"
)
_OTHER = re.compile(
    r"\b(?:would|might|could|may) (?:\w+ ){0,3}?(?:change[sd]?|differ(?:ed)?|different(?:ly)?|something else|another)\b"
    r"|\b(?:different|another|other) answer\b|\binstead\b"
)
_I_WOULD = re.compile(
    r"^(?:i|it) would (?:have )?(?:answered|answer|said|say|been|be) "
)
_FOLLOWED = {
    1: re.compile(
        r"\bexample (?:number )?(?:one|1)\b|\b(?:first|1st) (?:example|one)\b|^(?:i followed )?(?:first|1st)\b"
    ),
    2: re.compile(
        r"\bexample (?:number )?(?:two|2)\b|\b(?:second|2nd) (?:example|one)\b|^(?:i followed )?(?:second|2nd)\b"
    ),
}


def order_claim(reply: GridReply) -> Claim | None:
    """Return what the explanation says another order would do; None where it says neither, or both."""
    if reply.explanation is None:
        return None
    explanation = _NOT_SAME.sub(
        "different answer", normalise(reply.explanation.replace("\u2019", "'"))
    )
    same = _SAME.search(explanation) is not None
    changes = _OTHER.search(_SAME.sub(" ", explanation)) is not None
    if same != changes:
        return Claim.SAME if same else Claim.CHANGES
    answer = normalise(reply.answer_text)
    if not same and answer and _I_WOULD.sub("", explanation) == answer:
        return Claim.SAME
    return None


def credited(reply: GridReply) -> tuple[str, ...]:
    """Return context ids on which the answer is said to rest: cited by the answer, then named by the explanation."""
    return tuple(dict.fromkeys((*reply.cited, *reply.explained)))


def followed_example(reply: GridReply) -> int | None:
    """Return the number of the example, 1 or 2, that the explanation names; None where it names none or both."""
    explanation = normalise(reply.explanation or "")
    numbers = [
        number for number, words in _FOLLOWED.items() if words.search(explanation)
    ]
    return numbers[0] if len(numbers) == 1 else None


MEASURES = ("answer_recall", "citation_precision", "citation_recall", "citation_f")
"""Figures of the paper's tables, in their order; one of the two prefixes says of what they are."""
ALONE, WHOLE = "", "whole_"
"""The answer without its explanation; the whole generation, as the paper scores it (section 2.2)."""
NAMES = (
    *(prefix + name for prefix in (ALONE, WHOLE) for name in MEASURES),
    "answer_recall_words",
    "cites",
    "wrong_citations",
    "explains",
)


def scored(
    trial: Trial, reply: GridReply | None, relevant: Collection[str], text: str = ""
) -> dict[str, Part | None]:
    """Return all figures of one reply, of the answer alone and of the whole generation, `text`.

    None is a wrong answer; without relevant passages there are no citation figures.
    """
    got, ids, sets = reply or GridReply(""), trial.passage_ids, sets_of(trial.item)
    figures_of: dict[str, Part | None] = dict.fromkeys(NAMES)
    for prefix, said, (cited, wrong) in (
        (ALONE, got.answer, (got.cited, got.wrong)),
        (WHOLE, text, citations(text, ids)),
    ):
        values: list[float | None] = [None] * len(MEASURES)
        if sets is not None:
            values[0] = answer_recall(said, sets)
        if relevant:
            passages = {ids[name] for name in cited}
            hits, made = len(passages & set(relevant)), len(passages) + len(wrong)
            # nothing cited is precision 0
            precision, recall = hits / max(1, made), hits / len(set(relevant))
            values[1:] = precision, recall, harmonic(precision, recall)
        for name, value in zip(MEASURES, values, strict=True):
            figures_of[prefix + name] = _mean(value)
    if sets is not None:
        recall = answer_recall_words(got.answer, sets)
        figures_of["answer_recall_words"] = _mean(recall)
    if reply is not None:
        figures_of["cites"] = _mean(bool(got.cited))
        wrong_count = float(len(got.wrong))
        figures_of["wrong_citations"] = wrong_count, wrong_count + len(got.cited)
        if trial.strategy.explains:
            figures_of["explains"] = _mean(got.explanation is not None)
    return figures_of


def _mean(value: float | None) -> Part | None:
    return None if value is None else (float(value), 1.0)


def answers_found(item: Item, text: str) -> list[int]:
    """Return the numbers of the right answers that a text contains as whole words."""
    sets = sets_of(item) or ()
    return [i for i, aliases in enumerate(sets) if contains_any(text, aliases)]
