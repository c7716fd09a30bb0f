"""Make questions with several answers over several passages, as QAMPARI has them, from a folder of given data.

    python scripts/make_list_questions.py --data DATA --out runs/lists/list_questions.jsonl

Reads DATA/corpus/wiki-mix.jsonl.gz and writes rows in the schema of eval files (`answers`: a list of lists of names)
and a manifest beside them. The same corpus and seed give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from command import command
from list_questions.rows import Selection, make_list_questions


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus/, or a corpus file")
    parser.add_argument("--out", type=Path, required=True, help="the .jsonl file")
    parser.add_argument("--passages", type=int, default=10, help="found for a question")
    parser.add_argument("--within", type=int, default=3, help="relevant evidence must be among so many; 0: anywhere")
    parser.add_argument("--examples", type=int, default=10, help="questions set aside as examples (split train)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    selection = Selection(given.passages, given.within, given.examples, given.seed)
    manifest = make_list_questions(given.data, given.out, selection)
    print(json.dumps(manifest, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
