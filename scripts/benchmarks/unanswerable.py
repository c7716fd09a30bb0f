"""How many questions are answered as it is and with `Decoding.strict`, where documents hold an answer and where not?

python -m scripts.benchmarks.unanswerable FILE.jsonl .. [--model demo] [--skip 100]

The passages of all rows are indexed together, and the questions are asked over that index.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from retrieval import index_passages
from retrieval.passage import Passage
from scripts.command import command
from selfrag.api import SelfRAG
from selfrag.common.errors import UserError
from selfrag.decoding.policy import Decoding
from selfrag.evaluation.intervals import bracketed, mean
from selfrag.evaluation.items import Item
from selfrag.evaluation.task_files import read_task
from selfrag.loading import DEMO, resolve_encoder


@command
def main(files: list[str], *, model: str = "demo", skip: int = 0) -> None:
    """Print the table.

    Args:
        files: rows with passages and a label, answerable or unanswerable.
        model: checkpoint directory, hub name or demo.
        skip: questions of each kind and file that are left out, of a sample with seed 0.
    """
    passages: dict[str, Passage] = {}
    items: list[Item] = []
    for file in files:
        rows = read_task(Path(file)).items
        for row in rows:
            passages |= {passage.id: passage for passage in row.passages}
        for kind in (True, False):
            of_kind = [row for row in rows if row.answerable is kind and row.passages]
            random.Random(0).shuffle(of_kind)  # noqa: S311 - a sample
            items += of_kind[skip:]
    if not items:
        raise UserError("no row is left that has a label and passages")
    print("| setting | unanswerable | answerable |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        index_passages(passages.values(), index, encoder=resolve_encoder(DEMO))
        with SelfRAG.from_pretrained(
            model, retriever=index, judges=["token_isrel"]
        ) as rag:
            show("as it is", rag, items, Decoding())
            show("Decoding.strict()", rag, items, Decoding.strict())


def show(setting: str, rag: SelfRAG, items: Sequence[Item], decoding: Decoding) -> None:
    """Print how many questions of each kind are answered, with intervals in percent."""
    answers = rag.generate([item.instruction for item in items], decoding=decoding)
    cells = []
    for kind in (False, True):
        answered = []
        for item, answer in zip(items, answers, strict=True):
            if item.answerable is kind:
                answered.append(float(bool(answer.text) and not answer.abstained))
        count = f"{sum(answered):.0f} of {len(answered)}"
        cells.append(f"{count}, {bracketed(mean(answered))}%")
    print(f"| {setting} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
