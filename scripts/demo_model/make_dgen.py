"""Make the generator's training rows (D_gen): `make_dgen.py --data DATA --critic CRITIC --out OUT`.

Indexes DATA/corpus/wiki-mix.jsonl.gz (once; kept in OUT/index) and writes reflection tokens and passages into
DATA/train/pairs.jsonl with it. Stopped at any moment, the same command continues. Everything after `--` goes to
`critic augment` and overrides what is set here, for example `-- --limit 200 --ray local --workers 4`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Pairs of these data bring the passage that their annotators saw, and the corpus holds the evidence of only some of
# them, so these passages join the candidates. The labelled cases that the critic learned from always show an output, so
# the first judgment sees it too (Algorithm 3). A fully supporting passage goes before a partly supporting one
# of a better rank, as in the published code.
SETTINGS = (
    "--gold",
    "join",
    "--initial",
    "output",
    "--choice",
    "graded",
    "--balance",
    "paper",
    "--seed",
    "20",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with train/ and corpus/"
    )
    parser.add_argument(
        "--critic", required=True, help="folder of a trained critic, demo, or lexical"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="index/ and rows/ go there"
    )
    parser.add_argument(
        "options", nargs="*", help="after --: options of critic augment"
    )
    arguments = parser.parse_args(argv)
    index = arguments.out / "index"
    if not index.exists():
        from selfrag.cli.main import main as selfrag

        corpus = arguments.data / "corpus" / "wiki-mix.jsonl.gz"
        if code := selfrag(["index", "build", str(corpus), "-o", str(index)]):
            return code
    from critic.cli.main import main as critic

    pairs = str(arguments.data / "train" / "pairs.jsonl")
    where = [
        "--critic",
        arguments.critic,
        "--index",
        str(index),
        "-o",
        str(arguments.out / "rows"),
    ]
    return critic(["augment", pairs, *where, *SETTINGS, *arguments.options])


if __name__ == "__main__":
    sys.exit(main())
