"""What an explanation claims that can be tested. Pure text; a claim that cannot be read is None, never guessed.

A counterfactual explanation claims that another order leaves the answer the same, or changes it. Any explanation claims
that the answer rests on the contexts that are cited or named. An example-based one claims that an example was followed.
"""

from __future__ import annotations

import re
from enum import StrEnum

from selfrag.evaluation.normalisation import normalise
from selfrag.experiments.interpretation.replies import Reply

_NOT_SAME = re.compile(r"\b(?:not|(?:would|could|might|wo)nt|never) (?:\w+ ){0,3}?same(?: answer)?\b")
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
_FOLLOWED = {
    1: re.compile(
        r"\bexample (?:number )?(?:one|1)\b|\b(?:first|1st) (?:example|one)\b|^(?:i followed )?(?:first|1st)\b"
    ),
    2: re.compile(
        r"\bexample (?:number )?(?:two|2)\b|\b(?:second|2nd) (?:example|one)\b|^(?:i followed )?(?:second|2nd)\b"
    ),
}


class Claim(StrEnum):
    """What is said to happen to the answer."""

    SAME = "same"
    CHANGES = "changes"


def order_claim(reply: Reply) -> Claim | None:
    """What the explanation says another order would do; None where it says neither, or both.

    An explanation that only repeats the answer claims the same answer.
    """
    if reply.explanation is None:
        return None
    said = _NOT_SAME.sub("different answer", normalise(reply.explanation.replace("\u2019", "'")))
    same = _SAME.search(said) is not None
    other = _OTHER.search(_SAME.sub(" ", said)) is not None
    if same != other:
        return Claim.SAME if same else Claim.CHANGES
    answer = normalise(reply.plain)
    return Claim.SAME if not same and answer and _bare(said) == answer else None


def credited(reply: Reply) -> tuple[str, ...]:
    """Context ids on which the answer is said to rest: those the answer cites, then those the explanation names."""
    return tuple(dict.fromkeys((*reply.cited, *reply.named)))


def followed_example(reply: Reply) -> int | None:
    """Number of the example, 1 or 2, that the explanation names; None where it names none or both."""
    if reply.explanation is None:
        return None
    said = normalise(reply.explanation)
    found = [number for number, words in _FOLLOWED.items() if words.search(said)]
    return found[0] if len(found) == 1 else None


def _bare(said: str) -> str:
    """An explanation without its beginning `I would have answered`."""
    return re.sub(r"^(?:i|it) would (?:have )?(?:answered|answer|said|say|been|be) ", "", said)
