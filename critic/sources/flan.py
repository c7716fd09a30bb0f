r"""FLAN v2 as sampled for Open-Instruct, and its forks on Hugging Face: `inputs` and `targets`, other keys ignored.

{"inputs": "Premise: ...\nHypothesis: ...\nOPTIONS:\n- yes\n- no", "targets": "yes", "task": "snli:1.1.0"}
"""

from __future__ import annotations

from critic.pairs import Pair
from critic.sources.fields import text
from critic.sources.raw import Raw, make_pair, rowwise


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a row.

    Raises:
        UserError: the row is malformed.
        UnusableError: it has no output.
    """
    inputs, targets = text(raw.record, "inputs"), text(raw.record, "targets")
    return make_pair(f"{dataset}-{raw.key}", dataset, "instruction", inputs, targets)


read = rowwise(parse)
