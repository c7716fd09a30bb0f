"""A generation as answer, citations and explanation, read strictly. Pure; never raises for what a model wrote.

A citation is a pair of square brackets that holds context ids, separated by commas or semicolons, and nothing else. An
id that was not given is a wrong citation, and so are brackets with anything else in them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from selfrag.experiments.interpretation.template import ANSWER, LABELS

_BRACKETS = re.compile(r"\[([^\[\]\n]*)\]")
_LABELLED = re.compile(
    r"^[^\w\n]*(?:explanation|reason(?:ing)?|why|because)\b[^\w\n:]*[:\n]", re.IGNORECASE | re.MULTILINE
)
_LISTED = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s")
_BEGINS = re.compile(
    r"(?<=[.!?\]])\s+(?=(?:I (?:think|believe|would|gave|chose|followed)|My answer|This (?:is|answer|would)|That is why"
    r"|The (?:answer|reason|order|same|context|passage)|If the|Even if|Because|Since|Based on|According|Regardless"
    r"|It would|No(?:,|thing)|Context)\b)"
)
_WITHIN = re.compile(r"(?:,|(?<![,\s]))\s+because\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reply:
    """A generation, taken apart.

    Attributes:
        answer: what was answered, citations included.
        explanation: what was said about the answer; None where none was asked for or none can be told apart.
        cited: given context ids that the answer cites, each once, in order.
        wrong: what else stands in brackets in the answer, each once, in order.
        named: given context ids that occur in the explanation, in brackets or not.
        ran_on: the model went on with lines of the prompt, which are left out.
    """

    answer: str
    explanation: str | None = None
    cited: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    ran_on: bool = False

    @property
    def plain(self) -> str:
        """The answer without brackets."""
        return " ".join(_BRACKETS.sub(" ", self.answer).split())


def read_reply(generation: str, given: Collection[str], *, explains: bool, ends: Collection[str] = ()) -> Reply:
    """Take a generation apart.

    Args:
        generation: as the model wrote it.
        given: context ids of the prompt.
        explains: whether an explanation was asked for; else all is answer.
        ends: further beginnings of lines at which the model's own text ends, such as the tags of examples.
    """
    text = generation.strip().removeprefix(ANSWER).strip()
    own = _own(text, (*LABELS, *ends))
    answer, explanation = split(own) if explains else (own, None)
    cited, wrong = citations(answer, given)
    named = () if explanation is None else mentioned(explanation, given)
    return Reply(answer, explanation, cited, wrong, named, ran_on=len(own) < len(text))


def citations(text: str, given: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Right and wrong citations of a text, see `Reply`; empty brackets are none."""
    cited: dict[str, None] = {}
    wrong: dict[str, None] = {}
    for inside in _BRACKETS.findall(text):
        for part in re.split(r"[,;]", inside):
            name = part.strip()
            if name:
                (cited if name in given else wrong)[name] = None
    return tuple(cited), tuple(wrong)


def mentioned(text: str, given: Collection[str]) -> tuple[str, ...]:
    """Given ids that occur in a text as whole words, in order of first occurrence."""
    places = {name: re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for name in given}
    found = [(place.start(), name) for name, place in places.items() if place is not None]
    return tuple(name for _, name in sorted(found))


def split(text: str) -> tuple[str, str | None]:
    """Answer and explanation; None where they cannot be told apart.

    In this order: at a heading such as `Explanation:`, at the first blank line, at the first line that continues no
    list, at a sentence that begins as explanations do, at `because`.
    """
    if heading := _LABELLED.search(text):
        before = text[: heading.start()].split("\n")
        while before and not re.search(r"\w", before[-1]):  # a line of dashes or stars belongs to the heading
            before.pop()
        return _parts("\n".join(before), text[heading.end() :], text)
    paragraphs = re.split(r"\n\s*\n", text, maxsplit=1)
    if len(paragraphs) == 2:
        return _parts(paragraphs[0], paragraphs[1], text)
    first, *rest = text.splitlines() or [""]
    listed = _lines_listed(rest)
    if rest and listed < len(rest):
        return _parts("\n".join([first, *rest[:listed]]), "\n".join(rest[listed:]), text)
    for pattern in (_BEGINS, _WITHIN):
        if found := pattern.search(text):
            return _parts(text[: found.start()], text[found.start() :].lstrip(" ,"), text)
    return text, None


def _lines_listed(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if not _LISTED.match(line)), len(lines))


def _parts(before: str, after: str, whole: str) -> tuple[str, str | None]:
    if not before.strip() or not after.strip():
        return whole.strip(), None
    return before.strip(), after.strip()


def _own(text: str, ends: Collection[str]) -> str:
    """The text up to the first line that belongs to the prompt."""
    kept = []
    for line in text.splitlines():
        if line.lstrip().startswith(tuple(ends)):
            break
        kept.append(line)
    return "\n".join(kept).strip() if len(kept) < len(text.splitlines()) else text
