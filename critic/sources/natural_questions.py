"""Natural Questions from KILT: the question as it was typed, without a task instruction (Table 4), and its answer."""

from __future__ import annotations

from critic.pairs import Pair
from critic.sources.kilt import example
from critic.sources.raw import Raw, make_pair, rowwise


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a question; see `critic.sources.kilt` for the schemas and errors."""
    row = example(raw)
    return make_pair(f"{dataset}-{row.key}", dataset, "short_qa", row.question, row.answer, row.passages)


read = rowwise(parse)
