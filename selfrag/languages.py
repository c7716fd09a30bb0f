"""Whether a question is in another language than English, by its script and its commonest words.

For models that answer in English only, which say so. It knows the languages that are written most; of others it says
nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_SCRIPTS = (
    ("Chinese", re.compile("[\u3040-\u30ff\u3400-\u9fff]")),
    ("Korean", re.compile("[\uac00-\ud7af\u1100-\u11ff]")),
    ("Thai", re.compile("[\u0e00-\u0e7f]")),
    ("Arabic script", re.compile("[\u0600-\u06ff]")),
    ("Hebrew", re.compile("[\u0590-\u05ff]")),
    ("Cyrillic script", re.compile("[\u0400-\u04ff]")),
    ("Greek", re.compile("[\u0370-\u03ff]")),
    ("Devanagari script", re.compile("[\u0900-\u097f]")),
)
"""Scripts and the language that they show."""
_KANA = re.compile("[\u3040-\u30ff]")
_MOST = 2_000
"""Characters that are looked at."""


@dataclass(frozen=True, slots=True)
class _CommonWords:
    """What `languages.toml` holds."""

    english: frozenset[str]
    asking: frozenset[str]  # one of them at the beginning shows another language
    others: dict[str, frozenset[str]]  # by the name of the language


@cache
def _common_words() -> _CommonWords:
    """Read the words."""
    file = files(__package__).joinpath("languages.toml")
    words = tomllib.loads(file.read_text(encoding="utf-8"))
    others = {name: frozenset(text.split()) for name, text in words["common"].items()}
    english, asking = (frozenset(words[part].split()) for part in ("english", "asking"))
    return _CommonWords(english, asking, others)


def foreign_language(text: str) -> str | None:
    """Return the language of a text, or its script, where it is certainly not English; None where it may be.

    Example:
        >>> foreign_language("Qui a peint la Joconde ?"), foreign_language("Who painted the Mona Lisa?")
        ('French', None)
    """
    head = text[:_MOST]
    letters = sum(character.isalpha() for character in head)
    for name, script in _SCRIPTS:
        if letters and len(script.findall(head)) * 2 > letters:
            has_kana = name == "Chinese" and _KANA.search(head)
            return "Japanese" if has_kana else name
    words = [word.lower().replace("\u2019", "'") for word in _WORD.findall(head)]
    if not words:
        return None
    known = _common_words()
    english = sum(word in known.english for word in words)
    counts: Counter[str] = Counter()
    for name, common in known.others.items():
        counts[name] = sum(word in common for word in words)
    name, count = counts.most_common(1)[0]
    enough = count >= 2 or (count == 1 and words[0] in known.asking)
    return name if enough and count > english else None
