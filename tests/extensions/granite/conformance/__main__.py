"""Run recorded cases of the public intrinsics libraries through our codecs: pass, named deviation, or fail, for each.

    python scripts/tools/run_conformance.py DIR [--only D3] [--json FILE]

DIR holds cases in folders D1 .. D4, or is one of them. Exit code 0 if nothing failed, 1 if a case did, 2 on bad input.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from conformance.case import read_cases
from conformance.check import Outcome, Verdict, check
from conformance.compare import REASONS
from scripts.command import command
from selfrag.common.jsonl import write_jsonl
from selfrag.common.untrusted import printable


@command
def main(folder: Path, *, only: str = "", json: Path | None = None) -> int:
    """Run the cases and print what became of each.

    Args:
        folder: folder with cases (*.json), at any depth.
        only: cases whose id contains this text.
        json: file for the outcomes as JSON lines.
    """
    cases = [case for case in read_cases(folder) if only in case.id]
    outcomes = [check(case) for case in cases]
    if json:
        write_jsonl(json, map(_row, outcomes))
    for outcome in outcomes:
        why = outcome.failure or ", ".join(outcome.deviations)
        line = f"{outcome.verdict:9}  {outcome.case.id:55}  {' + '.join(outcome.checked):32}  {why}"
        print(printable(line).rstrip())
    counts = Counter(outcome.verdict for outcome in outcomes)
    print(
        f"\n{len(outcomes)} cases: "
        + ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict)
    )
    for deviation in sorted({d for outcome in outcomes for d in outcome.deviations}):
        print(f"  {deviation}: {REASONS[deviation]}")
    return 1 if counts[Verdict.FAIL] else 0


def _row(outcome: Outcome) -> dict[str, object]:
    return {
        "id": outcome.case.id,
        "verdict": str(outcome.verdict),
        "deviations": [str(deviation) for deviation in outcome.deviations],
        "failure": outcome.failure,
        "checked": list(outcome.checked),
    }


if __name__ == "__main__":
    main()
