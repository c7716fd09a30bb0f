"""The processed files of Open-Instruct (Tulu mixtures), which the paper sampled: all of its sets in one schema.

    {"dataset": "flan_v2", "id": "flan_v2_12", "messages": [{"role": "user", "content": ".."},
                                                            {"role": "assistant", "content": ".."}]}

The pair is filed under the row's own data set. The templates that Alpaca rows were rendered with end in `Output:`,
which asks for nothing once the prompt layout says where the response begins; it is left out.
"""

from __future__ import annotations

from critic.pairs import Pair
from critic.sources.fields import identifier, objects, text
from critic.sources.raw import Raw, make_pair, rowwise
from critic.sources.turns import exchange


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a conversation.

    Raises:
        UserError: the row is malformed.
        UnusableError: it is not one question with its answer.
    """
    key, name = identifier(raw.record, "id"), text(raw.record, "dataset", "") or dataset
    turns = objects(raw.record, "messages")
    instruction, output = exchange([(text(turn, "role"), text(turn, "content")) for turn in turns])
    instruction = instruction.rstrip().removesuffix("\nOutput:")
    return make_pair(key if key.startswith(name) else f"{name}-{key}", name, "instruction", instruction, output)


read = rowwise(parse)
