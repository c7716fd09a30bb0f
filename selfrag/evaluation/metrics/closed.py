"""Accuracy on closed sets: the option that was chosen, or that a text names, against the right one. Pure.

`accuracy` takes the output letter for letter, for systems that score options. `option_match` reads an option out of
free text, for models that only write; what names no option, or several, is wrong and counted by `option_unread`.
"""

from __future__ import annotations

import re

from selfrag.evaluation.containment import contains_any, normalise
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.metric import Metric, mean_of
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.multiple_choice import choices

_LEADING = re.compile(
    r"\s*+(?:(?:(?:the )?(?:correct |right )?(?:answer|option|choice))(?: is)?[\s:]++)?"
    r"[\s(\[*\"']*+(\w++)(?:[.:),\]*\"']|[^\S\n]*+(?:\n|$))",
    re.IGNORECASE,
)


def option_accuracy(item: Item, output: Output) -> float | None:
    """1 if the chosen option is the right one, letter for letter; None if the item has no options."""
    return float(output.text == choices(item).right) if item.options else None


def read_option(text: str, item: Item) -> str | None:
    """The option that a text names: as it is written at its beginning, else the only one whose words occur in it.

    Args:
        text: what a model wrote, such as `B`, `(B) Mars`, `true.` or `It is Mars.`
        item: with options.

    Returns:
        The option as it is scored; None if the text names none, or several.
    """
    surfaces = choices(item).surfaces
    if (leading := _LEADING.match(text)) and (found := _named(leading[1], surfaces)):
        return found
    if (found := _named(text, surfaces)) is not None:
        return found
    inside = [surface for surface, option in zip(surfaces, item.options, strict=True) if contains_any(text, [option])]
    return inside[0] if len(inside) == 1 else None


def _named(text: str, surfaces: tuple[str, ...]) -> str | None:
    # Letters keep their case: `a` in a sentence is an article.
    if text.strip() in surfaces:
        return text.strip()
    wanted = normalise(text)
    found = [surface for surface in surfaces if len(surface) > 1 and normalise(surface) == wanted]
    return found[0] if len(found) == 1 else None


def _match(item: Item, output: Output) -> float | None:
    return float(read_option(output.text, item) == choices(item).right) if item.options else None


def _unread(item: Item, output: Output) -> float | None:
    return float(read_option(output.text, item) is None) if item.options else None


ACCURACY = Metric("accuracy", mean_of(option_accuracy))
OPTION_MATCH = Metric("option_match", mean_of(_match))
OPTION_UNREAD = Metric("option_unread", mean_of(_unread), of_failure=None)
