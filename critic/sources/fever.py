"""FEVER from KILT: a claim, and `true` or `false` for its verdict SUPPORTS or REFUTES."""

from __future__ import annotations

from critic.pairs import Pair
from critic.sources.instructions import FACT_CHECK, asked
from critic.sources.kilt import example
from critic.sources.raw import Raw, UnusableError, make_pair, rowwise
from retrieval.errors import UserError

VERDICTS = {"SUPPORTS": "true", "REFUTES": "false"}


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a claim; see `critic.sources.kilt` for the schemas and errors.

    Raises:
        UserError: the verdict is another one, such as NOT ENOUGH INFO, which KILT leaves out.
    """
    row = example(raw)
    if not row.question.strip():
        raise UnusableError("no instruction")
    if row.answer.strip() not in VERDICTS:
        raise UserError(f"unknown verdict {row.answer!r:.60}; known: {', '.join(VERDICTS)}")
    output = VERDICTS[row.answer.strip()]
    return make_pair(
        f"{dataset}-{row.key}", dataset, "fact_check", asked(FACT_CHECK, row.question), output, row.passages
    )


read = rowwise(parse)
