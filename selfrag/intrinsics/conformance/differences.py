"""Where two requests part, as one line."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any


def difference(name: str, ours: str, theirs: str) -> str:
    """Where two texts part."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    shown = slice(max(0, at - 20), at + 40)
    return f"{name}: at {at}: {ours[shown]!r} where {theirs[shown]!r} was recorded"


def first_difference(ours: Any, theirs: Any, at: str = "request") -> str:
    """The first place where two JSON values differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                return first_difference(ours.get(name), theirs.get(name), f"{at}.{name}")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a != b:
                return first_difference(a, b, f"{at}[{index}]")
    if isinstance(ours, str) and isinstance(theirs, str):
        return difference(at, ours, theirs)
    return f"{at}: {ours!r:.160} where {theirs!r:.160} was recorded"


def whole(value: Any, letters: Collection[str]) -> Any:
    """The value with broken-up look-alikes of sentence tags whole again in every string: `< c1>` as `<c1>`."""
    if isinstance(value, str):
        return re.sub(rf"< (?=[{''.join(sorted(letters))}]\d+>)", "<", value) if letters else value
    if isinstance(value, list):
        return [whole(one, letters) for one in value]
    if isinstance(value, dict):
        return {key: whole(one, letters) for key, one in value.items()}
    return value
