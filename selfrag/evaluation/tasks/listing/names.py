"""Names at the beginning of a piece of English text. Pure; knows no relation.

A name is a run of capitalised words, joined by a few small ones; a description of who it is (`American rock band`) may
stand before it. Whatever is doubtful gives no name: a missed relation costs a question, a wrong one its answer.
"""

from __future__ import annotations

import re

_ROLES = re.compile(
    r"^(?:band|duo|trio|quartet|quintet|group|ensemble|collective|singer|rapper|musician|artists?|songwriter|"
    r"singer-songwriter|producer|composer|comedian|DJ|author|writer|novelist|playwright|poet|director|filmmaker|"
    r"vocalist|guitarist|entertainer|screenwriter|actor|actress|dramatist|essayist)$"
)
_DEMONYM = re.compile(
    r"^(?:[A-Z][a-z]+(?:ish|ese|ian|can|ean|tch|nch)|Welsh|Greek|Irish|Thai|Swiss|German|Swede|Northern|Southern|New|"
    r"South|North|West|East|African|Latin|Christian|[A-Z][\w.]*-(?:based|born|[A-Z]\w+)|Grammy|Academy|Nobel|Pulitzer|R&B|EDM|Inc\.?|LLC)$"
)
_JOINING = frozenset(("of", "the", "de", "van", "von", "del", "della", "la", "le", "da", "di", "du", "&", "bin", "al"))
_AND = ("and",)
_BREAKING = ("at", "from")  # `Ready at Dawn`: perhaps half a name
_INITIAL = re.compile(r"^(?:[A-Z]\.)+$|^(?:Jr|Sr|Dr|St|Mr|Mrs|vs|Inc|Ltd)\.$")
LONGEST_DESCRIPTION = 14
"""Words before a name."""
LONGEST_NAME = 7
"""Words of one."""


def names(text: str, *, words: int) -> list[str]:
    """The names at the beginning of `text`: one, or several that are listed with commas and `and`.

    Args:
        text: what follows `directed by` or the like.
        words: fewest words of a name that no role (`singer`) introduces.
    """
    tokens = text.split()[:60]
    start, described = _after_description(tokens)
    found: list[str] = []
    at = start
    while True:
        name, end, more = _one(tokens, at)
        if len(name.split()) < (1 if described else words) or not name or _DEMONYM.match(name.split()[-1]):
            return found
        found.append(name)
        if not more:
            return found
        described = False
        at = end + (tokens[end] in _AND if end < len(tokens) else 0)


def _after_description(tokens: list[str]) -> tuple[int, bool]:
    """Where the name begins, and whether a role stands before it."""
    last = -1
    for i, token in enumerate(tokens[:LONGEST_DESCRIPTION]):
        word = token.rstrip(",")
        if _ROLES.match(word):
            last = i
        elif (word[:1].isupper() and not _DEMONYM.match(word)) or token[-1:] == "." or '"' in token:
            break
    if last >= 0:
        return last + 1, not tokens[last].endswith(",")
    return (1 if tokens[:1] == ["the"] else 0), False


def _one(tokens: list[str], at: int) -> tuple[str, int, bool]:
    """Name, place after it, and whether another may follow."""
    words: list[str] = []
    for i in range(at, min(len(tokens), at + LONGEST_NAME + 1)):
        token = tokens[i]
        if token in ("the", "The") and not words and i + 1 < len(tokens):
            words.append("The")
            continue
        if token in _JOINING and words and i + 1 < len(tokens) and tokens[i + 1][:1].isupper():
            words.append(token)
            continue
        bare = token if _INITIAL.match(token) else token.rstrip(',;:.!?)"”')
        if not bare[:1].isupper() and not (bare[:1].isdigit() and words):
            broken = token in _BREAKING and tokens[i + 1 : i + 2] and tokens[i + 1][:1].isupper()
            return "" if broken else _joined(words), i, token in _AND
        words.append(bare.removesuffix("'s").removesuffix("\u2019s"))
        if words[-1] != bare:
            return "", i, False
        if bare != token:
            more = token[len(bare) :] == "," and not token.endswith(".")
            return _joined(words), i + 1, more
    return _joined(words), min(len(tokens), at + LONGEST_NAME + 1), False


def _joined(words: list[str]) -> str:
    return " ".join(words) if words and words != ["The"] and len(words) <= LONGEST_NAME else ""
