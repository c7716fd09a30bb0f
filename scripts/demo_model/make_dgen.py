"""Make the generator's training rows (D_gen): `make_dgen.py --data DATA --critic CRITIC --out OUT`.

Indexes DATA/corpus/wiki-mix.jsonl.gz (once; kept in OUT/index) and writes reflection tokens and passages into
DATA/train/pairs.jsonl with it. Stopped at any moment, the same command continues. Everything after `--` goes to
`critic augment` and overrides what is set here, for example `-- --limit 200 --ray local --workers 4`.
"""

from __future__ import annotations

from pathlib import Path

from scripts.command import command

# Pairs of these data bring the passage that their annotators saw, and the corpus holds the evidence of only some of
# them, so these passages join the candidates. The labelled cases that the critic learned from always show an output, so
# the first judgment sees it too (Algorithm 3). A fully supporting passage goes before a partly supporting one
# of a better rank, as in the published code.
SETTINGS = [
    "--gold-passages",
    "join",
    "--initial",
    "output",
    "--choice",
    "graded",
    "--balance",
    "paper",
    "--seed",
    "20",
]


@command
def main(
    options: list[str] | None = None, *, data: Path, critic: str, out: Path
) -> int:
    """Build the index unless it is there, and write the rows.

    Args:
        options: after --: options of critic augment.
        data: folder with train/ and corpus/.
        critic: folder of a trained critic, demo, or lexical.
        out: index/ and rows/ go there.
    """
    index = out / "index"
    if not index.exists():
        from selfrag.cli.main import main as selfrag

        corpus = data / "corpus" / "wiki-mix.jsonl.gz"
        if code := selfrag(["index", "build", str(corpus), "-o", str(index)]):
            return code
    from critic.cli.main import main as run_critic

    pairs = str(data / "train" / "pairs.jsonl")
    places = ["--index", str(index), "-o", str(out / "rows")]
    words = ["augment", pairs, "--critic", critic, *places, *SETTINGS]
    return run_critic([*words, *(options or ())])


if __name__ == "__main__":
    main()
