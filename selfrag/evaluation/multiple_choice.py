"""Multiple choice as a model would write it: the options that are scored, and which of them is right. Pure.

Where the label is one of the options, the options themselves are written (`true`, `false`); where it is a letter or a
number, the options are named by letters or numbers. Such an item can also be asked without its listed options, whose
texts are then scored ("cloze" in lm-evaluation-harness).
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from selfrag.decoding.options import Length
from selfrag.errors import UserError
from selfrag.evaluation.items import TASK_INPUT, Item


def unlisted(text: str, options: Sequence[str]) -> str:
    """`text` without the options listed at its end, as `A: ..`, `A. ..`, `A) ..`, `(A) ..` or with numbers from 1.

    Returns:
        What stands before the listing; `text` as it is unless every option is listed under its own name, and nothing
        comes after them.
    """
    letters = tuple(string.ascii_uppercase[: len(options)])
    numbers = tuple(str(number) for number in range(1, len(options) + 1))
    found = (_before(text, options, names) for names in (letters, numbers) if len(names) == len(options))
    return next((before for before in found if before is not None), text)


def _before(text: str, options: Sequence[str], names: Sequence[str]) -> str | None:
    for name, option in zip(reversed(names), reversed(options), strict=True):
        text, listed = text.rstrip(), option.strip()
        if not listed or not text.endswith(listed):
            return None
        text, _, line = text.removesuffix(listed).rstrip().rpartition("\n")
        if line.strip() not in (f"{name}:", f"{name}.", f"{name})", f"({name})"):
            return None
    return text.rstrip()


Form: TypeAlias = Literal["letters", "texts"]
"""How an item whose label is a letter or a number is asked; other multiple-choice items are the same in both."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of one item."""

    surfaces: tuple[str, ...]  # what can be written, one for each option
    right: str  # the surface of the right option
    # what is taken out of their probabilities; the field's `acc_norm` for texts of different lengths
    length: Length = "none"


def choices(item: Item) -> Choices:
    """The options of an item.

    Raises:
        UserError: fewer than two options, an option that is blank or equal to another, or a label that names none.
    """
    options, label = item.options, item.label
    if label is None or len(options) < 2:
        raise UserError("a multiple-choice item needs a label and at least two options")
    if len(set(options)) != len(options) or not all(option.strip() for option in options):
        raise UserError("two options are equal, or one is blank")
    surfaces = _surfaces(label, options)
    if len(surfaces) < len(options):
        raise UserError(f"{len(options)} options, and letters name {len(surfaces)}; give the label as a number or text")
    if label not in surfaces:
        raise UserError(f"label {label!r} is none of {', '.join(surfaces[:26])}")
    return Choices(surfaces, label, "characters" if item.cloze else "none")


def in_form(item: Item, form: Form) -> Item:
    """An item as it is asked and scored in a form, its options checked.

    For `texts` the label becomes the text of the option that it names, so that accuracy is the same metric.

    Raises:
        UserError: as `choices`.
    """
    if not item.options:
        return item
    found = choices(item)
    if form == "letters" or item.label in item.options:
        return item
    options = tuple(option.strip() for option in item.options)
    question = _bare(item)
    label = options[found.surfaces.index(found.right)]
    asked = replace(item, instruction=question, query=question, options=options, label=label, cloze=True)
    choices(asked)
    return asked


def recorded_form(settings: Mapping[str, Any]) -> Form:
    """The form that a run's manifest notes among the settings of a file; runs from before forms note none."""
    return "texts" if settings.get("choices") == "texts" else "letters"


def _bare(item: Item) -> str:
    """The question alone: the item's own; else, or where only options are its input, what stands before the input."""
    bare = (unlisted(text, item.options).strip() for text in (item.query, item.instruction.partition(TASK_INPUT)[0]))
    return next((text for text in bare if text), item.instruction)


def _surfaces(label: str, options: tuple[str, ...]) -> tuple[str, ...]:
    if label in options:
        return tuple(option.strip() for option in options) if label == label.strip() else options
    if label.isdecimal():
        return tuple(str(number) for number in range(1, len(options) + 1))
    return tuple(string.ascii_uppercase[: len(options)])
