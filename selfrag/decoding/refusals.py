"""Whether a text as a whole says that it gives no answer: `refuses`. Answers, traces and metrics know a refusal by it.

It is a rule about English, and a list of short texts in 28 other languages; docs/guides/metrics.md has its precision
and recall. A text refuses if each of its sentences does, apart from apologies, offers of help and what a passage holds
instead, or if it refuses with reasons (`explained_refusals`). One sentence with an answer makes it no refusal: a
biography may end with `The passage does not mention her birthplace.` The patterns are in `refusals.toml`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

LONGEST_REFUSAL = 1_500
"""Characters of a text that may be a refusal; a longer one says something."""
_LONGEST_FOREIGN = 40
"""Characters of a refusal in another language than English."""

_CUE = re.compile(
    r"n['\u2019]t\b|\b(?:no|not|none|nothing|nowhere|never|neither|cannot|insufficient|inconclusive|impossible|irrelevant|"
    r"unable|unavailable|unsure|uncertain|unclear|unaware|unfamiliar|unknown|unrelated|unanswerable|undetermin(?:ed|able)|"
    r"lacks?|lacking|fails?|failed|needed|need|required?|necessary|missing|silent|hard|difficult|please|"
    r"could you|can you|beats|dunno|dont|cant|without|outside|beyond|leaves|different|declin\w+|"
    r"decline|abstain|refrain|pass|n/a)\b",
    re.IGNORECASE,
)
"""Words of which each English refusal has one; most other texts are told by the lack of them."""
_SPACE = re.compile(r"\s+")
_QUOTE = re.compile(r'"[^"]*"')
_ABBREVIATION = re.compile(
    r"\b(dr|mr|mrs|ms|st|prof|jr|sr|vs|no|e\.g|i\.e|u\.s)\.(?= )", re.IGNORECASE
)
_MARKS = re.compile(r" ?\[\d{1,3}(?:[,;] ?\d{1,3})*\]")
_SUGGESTS = re.compile(
    r"\b(?:however|but),? (?:it|they|this|the \w+) (?:\w+ly )?(?:suggest|impl(?:y|ies))|according to other sources"
    r"|general knowledge|publicly available",
    re.IGNORECASE,
)
"""An answer beside a refusal: what the evidence suggests, or what is known from elsewhere."""
_INITIAL = re.compile(r"\b([A-Z])\.(?=\s)")
_LIST_OF_SOURCES = re.compile(
    r"\n\s*(?:sources?|references?):\s*\n.*", re.IGNORECASE | re.DOTALL
)
_BRACKETS = re.compile(r" ?\[[^\]]{1,60}\]|\*")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(#-]*[A-Z0-9\u2022])|\n+")
_SENTENCE = re.compile(r"[.!?\u2026]+(?:\s|$)|\n+")
_CLAUSE = re.compile(
    r"[,;:]? (?:but|though|although|however|so)[ ,]|; | - | \u2013 | \u2014 |, (?:and|nor|therefore) "
    r"(?=(?:i|we|you|he|she|it|they|the|this|that|there|so|no|none|neither|nothing|an?|please)\b)",
    re.IGNORECASE,
)
_TITLE = re.compile(
    r"(?:I|We) (?:Don't|Do|Can't|Cannot|Am|Can|Could|Couldn't|Have|Haven't) [A-Za-z]+ \w"
    r"|(?:Don't|Can't|Do Not|Cannot) [A-Z]"
)
_CONTRACTIONS = {
    "can't": "cannot",
    "won't": "will not",
    "n't": " not",
    "i'm": "i am",
    "we're": "we are",
    "i've": "i have",
    "we've": "we have",
    "i'd": "i would",
    "i'll": "i will",
    "it's": "it is",
    "there's": "there is",
    "that's": "that is",
    "dont ": "do not ",
}


@dataclass(frozen=True, slots=True)
class _Patterns:
    """What `refusals.toml` holds, compiled. All but `content` match at the beginning of a clause."""

    refusal: re.Pattern[str]
    filler: re.Pattern[str]
    instead: re.Pattern[str]
    lead: re.Pattern[str]
    content: re.Pattern[str]


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(
        files(__package__).joinpath("refusals.toml").read_text(encoding="utf-8")
    )


@cache
def _foreign_refusals() -> frozenset[str]:
    """Return the usual refusals of other languages, each a whole text."""
    return frozenset(_table()["foreign"])


@cache
def _patterns() -> _Patterns:
    """Return the compiled patterns; the first call takes about half a second."""
    table = _table()
    parts: dict[str, str] = table["parts"]

    def compiled(pattern: str) -> re.Pattern[str]:
        text = pattern.replace("\n", "")
        while used := re.search(r"\{([A-Z_]+)\}", text):
            text = text.replace(used[0], parts[used[1]].replace("\n", ""))
        return re.compile(text)

    return _Patterns(
        refusal=compiled("|".join(f"(?:{pattern})" for pattern in table["refusals"])),
        filler=compiled(table["filler"]),
        instead=compiled(table["instead"]),
        lead=compiled(table["lead"]),
        content=compiled(table["content"]),
    )


def abstains(text: str) -> bool:
    """Return whether a text gives no answer: it has no word, or it refuses."""
    return not any(character.isalnum() for character in text) or refuses(text)


@lru_cache(maxsize=4_096)
def refuses(text: str) -> bool:
    """Return whether all that a text says is that the answer is not known or not there.

    English is read sentence by sentence. Of Arabic, Chinese, Czech, Danish, Dutch, Finnish, French, German, Greek,
    Hebrew, Hindi, Hungarian, Indonesian, Italian, Japanese, Korean, Norwegian, Persian, Polish, Portuguese, Romanian,
    Russian, Serbian, Spanish, Swedish, Thai, Turkish and Vietnamese the usual short refusals are known as whole texts.

    Args:
        text: an answer. An empty one is no refusal.

    Example:
        >>> refuses("I'm sorry, but the passages do not mention it."), refuses("I cannot tell a lie.")
        (True, False)
    """
    hinted = _CUE.search(text) is not None
    if len(text) > (LONGEST_REFUSAL if hinted else _LONGEST_FOREIGN):
        return False
    cleaned = _SPACE.sub(
        " ",
        _MARKS.sub("", text)
        .replace("\u2019", "'")
        .replace("\u201c", '"')
        .replace("\u201d", '"'),
    )
    cleaned = cleaned.strip(" *_`")
    if not cleaned:
        return False
    if cleaned[0] == cleaned[-1] == '"' and cleaned.count('"') == 2:
        if _TITLE.match(f"{cleaned[1:-1]} x"):
            return False
        cleaned = cleaned[1:-1]
    if cleaned.lower().strip(" .!\u3002\uff01\u061f?\u0964") in _foreign_refusals():
        return True
    if not hinted:
        return False
    if _SUGGESTS.search(cleaned):
        return False
    if _refuses_throughout(cleaned):
        return True
    # few texts come so far
    from selfrag.decoding.explained_refusals import explains_refusal

    return explains_refusal(_sentences(text))


def _sentences(text: str) -> list[str]:
    """Return sentences and lines in lower case, without contractions and marks."""
    unmarked = _BRACKETS.sub("", _LIST_OF_SOURCES.sub("", text)).replace("\u2019", "'")
    parts = _SENTENCE_END.split(_INITIAL.sub(r"\1", _ABBREVIATION.sub(r"\1", unmarked)))
    return [
        _contracted(part.strip().lower())
        for part in parts
        if any(character.isalnum() for character in part)
    ]


def _refuses_throughout(cleaned: str) -> bool:
    """Return whether each sentence refuses, or says nothing of its own beside one that does."""
    cleaned = _ABBREVIATION.sub(r"\1", _QUOTE.sub('"', cleaned))
    refused = False
    for sentence in _SENTENCE.split(cleaned):
        if not any(character.isalnum() for character in sentence):
            continue
        clauses = _clauses(sentence.strip())
        refused |= any(_is_refusal(clause) for clause in clauses)
        if not all(
            _is_refusal(clause) or _is_filler(clause, beside_refusal=refused)
            for clause in clauses
        ):
            return False
    return refused


def _clauses(sentence: str) -> list[str]:
    """Return the main clauses of a sentence, those that begin with `but` among them, without what leads to them."""
    if not sentence.isupper() and _TITLE.match(sentence):
        return [sentence]
    low = _contracted(sentence.lower())
    if _patterns().content.search(low):
        return [low]
    clauses = []
    for part in _CLAUSE.split(_without_lead(low)):
        clause = _without_lead(part.strip(" ,;:-"))
        if clause:
            clauses.append(clause)
    return clauses


def _without_lead(clause: str) -> str:
    """Return a clause without apologies and grounds before it."""
    for _ in range(4):
        lead = _patterns().lead.match(clause)
        if lead is None or lead.end() == len(clause):
            break
        clause = clause[lead.end() :].lstrip(" ,")
    return clause


def _is_refusal(clause: str) -> bool:
    """Return whether a clause says that there is no answer."""
    return (
        _patterns().refusal.match(clause) is not None
        and _patterns().content.search(clause) is None
    )


def _is_filler(clause: str, *, beside_refusal: bool) -> bool:
    """Return whether a clause says nothing of its own beside a refusal."""
    return _patterns().filler.match(clause) is not None or (
        beside_refusal and _patterns().instead.match(clause) is not None
    )


def _contracted(text: str) -> str:
    """Return lower-case text with contractions written out."""
    for short, long in _CONTRACTIONS.items():
        text = text.replace(short, long)
    return text
