"""Make rows of hallucination detection from a critic's IsSup rows, to measure judges on data sets they never saw.

    python scripts/demo_model/make_support_rows.py DATA/dev/critic.jsonl --without begin --without wice --out FOLDER
    selfrag eval intrinsics --model demo --data FOLDER --only hallucination_detection

FOLDER gets `hallucination_dev.jsonl`: the instruction as the user's turn, the output as the reply, the evidence as its
document. A label is that of the whole reply.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from critic.case_files import read_labelled
from critic.cases import Case, check
from scripts.command import command
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl

LABELS = {
    "Fully supported": "faithful",
    "Partially supported": "partial",
    "No support / Contradictory": "unfaithful",
}


def support_row(case: Case) -> dict[str, Any]:
    """Return a case of IsSup as a row.

    Raises:
        UserError: it has no evidence.
    """
    check(case)
    turns = [
        {"role": "user", "content": case.instruction},
        {"role": "assistant", "content": case.output},
    ]
    sentence = {"begin": 0, "end": len(case.output), "label": LABELS[case.label]}
    return {
        "id": case.id,
        "dataset": case.dataset,
        "conversation": turns,
        "documents": [{"doc_id": "e", **case.as_dict()["evidence"]}],
        "sentences": [{**sentence, "text": case.output}],
        "label_level": "response",
    }


@command
def main(file: Path, *, without: list[str] | None = None, out: Path) -> None:
    """Write the rows, and count them by data set.

    Args:
        file: rows of a critic.
        without: data set to leave out; repeatable.
        out: folder for hallucination_dev.jsonl.
    """
    cases = [case for case in read_labelled(file) if case.group == "IsSup"]
    datasets = {case.dataset for case in cases}
    if unknown := sorted(set(without or ()) - datasets):
        raise UserError(
            f"--without {unknown[0]}: {file} has only {', '.join(sorted(datasets))}"
        )
    remaining = [case for case in cases if case.dataset not in (without or ())]
    kept = [case for case in remaining if case.output.strip()]
    out.mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "hallucination_dev.jsonl", map(support_row, kept))
    for name, count in sorted(Counter(case.dataset for case in kept).items()):
        print(f"{name}: {count}")
    if len(kept) < len(remaining):
        print(f"left out, because the reply is empty: {len(remaining) - len(kept)}")


if __name__ == "__main__":
    main()
