"""Make rows of hallucination detection from a critic's IsSup rows, to measure judges on data sets they never saw.

    python scripts/demo_model/make_support_rows.py DATA/dev/critic.jsonl --without begin --without wice --out FOLDER
    selfrag eval intrinsics --model demo --data FOLDER --only hallucination_detection

FOLDER gets `hallucination_dev.jsonl`: the instruction as the user's turn, the output as the reply, the evidence as its
document. A label is that of the whole reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from scripts.command import command
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl, write_jsonl

LABELS = {
    "Fully supported": "faithful",
    "Partially supported": "partial",
    "No support / Contradictory": "unfaithful",
}


def support_row(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one row; None for another group than IsSup.

    Raises:
        UserError: a field is missing, or the label is none of IsSup.
    """
    if record.get("group") != "IsSup":
        return None
    try:
        output = record["output"]
        label = LABELS[record["label"]]
        evidence = record["evidence"]
        turns = [
            {"role": "user", "content": record["instruction"]},
            {"role": "assistant", "content": output},
        ]
        return {
            "id": record["id"],
            "dataset": record["dataset"],
            "conversation": turns,
            "documents": [
                {"doc_id": "e", "title": evidence["title"], "text": evidence["text"]}
            ],
            "sentences": [
                {"begin": 0, "end": len(output), "text": output, "label": label}
            ],
            "label_level": "response",
        }
    except KeyError as error:
        raise UserError(f"no row of IsSup: {error} is missing or unknown") from error


def rows(path: Path, without: Collection[str]) -> list[dict[str, Any]]:
    """Return the rows of a file, but for those of some data sets.

    Raises:
        UserError: the file cannot be read, a line is no row, or a data set to leave out is not there.
    """
    support = list(filter(None, read_jsonl(path, support_row)))
    datasets = {row["dataset"] for row in support}
    if unknown := sorted(set(without) - datasets):
        raise UserError(
            f"--without {unknown[0]}: {path} has only {', '.join(sorted(datasets))}"
        )
    return [row for row in support if row["dataset"] not in without]


@command
def main(file: Path, *, without: list[str] | None = None, out: Path) -> None:
    """Write the rows, and count them by data set.

    Args:
        file: rows of a critic.
        without: data set to leave out; repeatable.
        out: folder for hallucination_dev.jsonl.
    """
    every = rows(file, without or ())
    kept = [row for row in every if row["conversation"][1]["content"].strip()]
    out.mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "hallucination_dev.jsonl", kept)
    for name, count in sorted(Counter(row["dataset"] for row in kept).items()):
        print(f"{name}: {count}")
    if len(kept) < len(every):
        print(f"left out, because the reply is empty: {len(every) - len(kept)}")


if __name__ == "__main__":
    main()
