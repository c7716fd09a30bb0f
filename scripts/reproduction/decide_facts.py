"""Stand in for the official FactScore tool in a rehearsal: every sentence of an answer is one supported fact.

python -m scripts.reproduction.decide_facts facts.jsonl facts_factscore_output.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    """Read the tool's input, and write decisions in the format of its output."""
    asked, decided = map(Path, sys.argv[1:])
    answers = [json.loads(line)["output"] for line in asked.read_text(encoding="utf-8").splitlines()]
    decisions = [[{"atom": answer, "is_supported": True}] if answer else None for answer in answers]
    decided.write_text(json.dumps({"decisions": decisions}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
