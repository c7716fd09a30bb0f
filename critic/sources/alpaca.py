"""Stanford Alpaca and GPT-4 Alpaca: one JSON array, or the `text` variant on Hugging Face.

    {"instruction": "Identify the odd one out.", "input": "Twitter, Instagram, Telegram", "output": "Telegram"}

Rows have no id and are named by their number. Some outputs are empty in the published files.
"""

from __future__ import annotations

from critic.pairs import Pair
from critic.sources.fields import text
from critic.sources.instructions import asked
from critic.sources.raw import Raw, make_pair, rowwise

_NO_INPUT = {"", "<noinput>", "noinput", "no input"}
"""How the published files say that there is no input."""


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a row.

    Raises:
        UserError: the row is malformed.
        UnusableError: it has no output.
    """
    instruction, given = text(raw.record, "instruction"), text(raw.record, "input", "")
    if instruction.strip() and given.strip().casefold() not in _NO_INPUT:
        instruction = asked(instruction.strip(), given)
    return make_pair(f"{dataset}-{raw.key}", dataset, "instruction", instruction, text(raw.record, "output"))


read = rowwise(parse)
