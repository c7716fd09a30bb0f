"""Labels a second: one-token scoring against fifteen generated tokens a label, one row at a time, on vLLM.

    python scripts/bench_critic.py --critic RUN/model --data DATA/eval/dev/nq_dev.jsonl.gz --out FILE.json

Wants a quiet machine. A table goes to the standard output, progress to the error stream.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from critic.tables import markdown
from retrieval.atomic import write_json, writing
from retrieval.errors import UserError
from speed.labels import cases_of, race, same


def main() -> int:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--critic", required=True, help="folder of a trained critic, or demo")
    parser.add_argument("--data", type=Path, required=True, help="rows with instruction, answer and passages")
    parser.add_argument("--rows", type=int, default=20, help="rows; each asks 2 + 2 x passages labels (default 20)")
    parser.add_argument("--passages", type=int, default=5, help="passages of a row (default 5)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of ours (default 3)")
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    given = parser.parse_args()
    start = time.perf_counter()

    def say(what: str) -> None:
        print(f"[{time.perf_counter() - start:6.0f} s] {what}", file=sys.stderr, flush=True)

    try:
        if given.out:
            with writing(given.out):  # better said before minutes of measuring
                given.out.parent.mkdir(parents=True, exist_ok=True)
        cases = cases_of(given.data, given.rows, given.passages)
        found = race(given.critic, cases, repeats=given.repeats, say=say)
        if given.out:
            write_json(given.out, found.as_dict())
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    ours = found.paces[0]
    header = ("way", "labels", "seconds", "labels/s", "slower than ours by", "labels as ours")
    rows = [
        (
            pace.name,
            len(pace.labels),
            f"{pace.seconds:.1f}",
            f"{pace.per_second:.2f}",
            f"{pace.seconds / ours.seconds:.1f}x",
            same(ours, pace),
        )
        for pace in found.paces
    ]
    print(markdown(header, rows))
    print(f"\n{found.prompt_tokens} prompt tokens, {found.computed_tokens} of them computed by ours; its time:")
    print(", ".join(f"{name} {share:.0%}" for name, share in found.operators.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
