"""A closed set as the model would write it: the texts that are scored, and which of them is right. Pure.

Decided by the item's fields alone: where the label is one of the options, the options themselves are written (`true`,
`false`); where it is a letter or a number, the options are named by letters or numbers in their order.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from selfrag.errors import UserError
from selfrag.experiments.items import Item


@dataclass(frozen=True, slots=True)
class Choices:
    """The closed set of one item.

    Attributes:
        surfaces: what can be written, one for each option.
        right: the surface of the right option.
    """

    surfaces: tuple[str, ...]
    right: str


def choices(item: Item) -> Choices:
    """The closed set of an item.

    Raises:
        UserError: fewer than two options, an option that is blank or equal to another, or a label that names none.
    """
    options, label = item.options, item.label
    if label is None or len(options) < 2:
        raise UserError("a closed set needs a label and at least two options")
    if len(set(options)) != len(options) or not all(option.strip() for option in options):
        raise UserError("two options are equal, or one is blank")
    surfaces = _surfaces(label, options)
    if label not in surfaces:
        raise UserError(f"label {label!r} is none of {', '.join(surfaces[:26])}")
    return Choices(surfaces, label)


def _surfaces(label: str, options: tuple[str, ...]) -> tuple[str, ...]:
    if label in options:
        return tuple(option.strip() for option in options) if label == label.strip() else options
    if label.isdecimal():
        return tuple(str(number) for number in range(1, len(options) + 1))
    return tuple(string.ascii_uppercase[: len(options)])
