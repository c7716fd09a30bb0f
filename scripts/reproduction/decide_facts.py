"""Stand in for the official FactScore tool in a rehearsal: every answer is ten supported facts, as fewer cost.

python -m scripts.reproduction.decide_facts facts.jsonl facts_factscore_output.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    """Read the tool's input, and write decisions in the format of its output."""
    source, target = map(Path, sys.argv[1:])
    decisions = []
    for line in source.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)["output"]
        fact = {"atom": answer, "is_supported": True}
        decisions.append([fact] * 10 if answer else None)
    target.write_text(json.dumps({"decisions": decisions}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
