"""What an answer in words says, strictly: a label of the set, or a reason why there is none. Pure; guesses nothing.

Rules: an answer is the label alone, a JSON object with it under `label`, or a first line that holds exactly one label
in its brackets (or, where labels are digits, exactly one number) and does not negate it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_NEGATION = re.compile(r"\b(?:not|never|neither|nor|cannot|than|instead)\b|n['\u2019]t\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_LONGEST_LINE = 2_000


def read_label(text: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    """The label an answer gives.

    Args:
        text: the answer, of any length and content.
        surfaces: what may be written -> label name.

    Returns:
        The label name and an empty reason, or None and the reason, which repeats nothing of the answer.
    """
    thought = _THOUGHT.match(text)
    answer = text[thought.end() if thought else 0 :].strip()
    if not answer:
        return None, "empty answer"
    if answer.startswith("<think>"):
        return None, "a thought without an end"
    if answer.startswith("{"):
        return _from_object(answer, surfaces)
    if (label := _exact(answer, surfaces)) is not None:
        return label, ""
    line = answer.split("\n", 1)[0].strip()
    if len(line) > _LONGEST_LINE:
        return None, "the first line is too long"
    return _from_line(line, surfaces)


def _exact(answer: str, surfaces: Mapping[str, str]) -> str | None:
    if answer in surfaces:
        return surfaces[answer]
    return surfaces.get(f"[{answer}]")


def _from_line(line: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    if (label := _exact(line, surfaces)) is not None:
        return label, ""
    if all(surface.isdigit() for surface in surfaces):
        found = _NUMBER.findall(line)
        if len(found) != 1:
            return None, f"{len(found)} numbers in the first line"
        return _unless_negated(line, found[0], surfaces) if found[0] in surfaces else (None, "a number off the scale")
    found = [surface for surface in surfaces if surface.startswith("[") and surface in line]
    if len(found) != 1:
        return None, f"{len(found)} labels of the set in the first line"
    return _unless_negated(line, found[0], surfaces)


def _unless_negated(line: str, surface: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    if _NEGATION.search(line[: line.index(surface)]):
        return None, "the first line negates or compares"
    return surfaces[surface], ""


def _from_object(answer: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        value = json.loads(answer, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None, "an object that is no JSON, or names a key twice"
    label = value.get("label")
    if not isinstance(label, str) or (found := _exact(label.strip(), surfaces)) is None:
        return None, "an object without a label of the set"
    return found, ""
