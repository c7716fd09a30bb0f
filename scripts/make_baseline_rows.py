"""Make the baselines' training rows from input-output pairs, in the format that the generator is trained on.

    python scripts/make_baseline_rows.py finetuned --pairs pairs.jsonl --out runs/finetuned/rows.jsonl
    python scripts/make_baseline_rows.py sail --pairs pairs.jsonl --index INDEX --out runs/sail/rows.jsonl
    python scripts/make_baseline_rows.py sail --pairs pairs.jsonl --corpus wiki-mix.jsonl.gz --out runs/sail/rows.jsonl

`finetuned` is the paper's fine-tuning without retrieval (Llama2-FT): the output after the instruction. `sail` follows
SAIL: the first passage found for the question between its markers, then the output, and no critique. Train both with
the settings of the generator; `selfrag.evaluation.systems` decodes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from command import command
from critic.pairs import Pair, read_pairs
from retrieval.passage import Passage, Retriever
from selfrag.common.errors import UserError
from selfrag.prompting import SELFRAG
from selfrag.training.rows import Evidence, Row, Text, write_rows

BATCH = 256
"""Queries of one search."""


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["finetuned", "sail"])
    parser.add_argument("--pairs", type=Path, required=True, help="pairs, .jsonl or .jsonl.gz")
    parser.add_argument("--index", help="sail: an index directory, or demo")
    parser.add_argument("--corpus", type=Path, help='sail: {"id","title","text"} a line, searched by BM25')
    parser.add_argument("--out", type=Path, required=True, help="the rows")
    arguments = parser.parse_args()
    print(f"{_make(arguments)} rows in {arguments.out}")
    return 0


def _make(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from selfrag.loading import load_index

    pairs = list(read_pairs(arguments.pairs))
    shown = tqdm(pairs, unit="pair", disable=None)
    if arguments.kind == "finetuned":
        return write_rows(arguments.out, text_rows(shown))
    if (arguments.index is None) == (arguments.corpus is None):
        raise UserError("sail needs passages: give --index DIR or --corpus FILE")
    if arguments.corpus is not None:
        return write_rows(arguments.out, evidence_rows(shown, _lexical(arguments.corpus), batch=len(pairs)))
    return write_rows(arguments.out, evidence_rows(shown, load_index(arguments.index)))


def _lexical(corpus: Path) -> Retriever:
    """BM25 over a file; it is indexed again for every batch, so all queries should go in one."""
    from demo_rows.drafts import search
    from selfrag.common.jsonl import read_jsonl

    passages = {p.id: p for p in read_jsonl(corpus, _passage)}
    return lambda queries, k: search(passages, queries, k)


def _passage(record: dict[str, Any]) -> Passage:
    if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
        raise UserError("a passage needs the texts 'id' and 'text'")
    return Passage(record["id"], record["text"], str(record.get("title") or ""))


def text_row(pair: Pair) -> Row:
    """Instruction and output, nothing else."""
    return Row(pair.id, _source(pair), pair.instruction, (Text(pair.output),))


def evidence_row(pair: Pair, passage: Passage | None) -> Row:
    """The output after one passage; without a passage the same as `text_row`."""
    if passage is None or not passage.text.strip():
        return text_row(pair)
    return Row(pair.id, _source(pair), pair.instruction, (Evidence(replace(passage, score=None)), Text(pair.output)))


def text_rows(pairs: Iterable[Pair]) -> Iterator[Row]:
    """Baseline (ii): a row a pair, in order."""
    return map(text_row, pairs)


def evidence_rows(pairs: Iterable[Pair], retriever: Retriever, *, batch: int = BATCH) -> Iterator[Row]:
    """Baseline (iii): a row a pair, each with the first passage that is found for its question.

    Args:
        pairs: in any number; searched in batches.
        retriever: the one that D_gen was made with, so that all learn from the same evidence.
        batch: queries of one search.

    Raises:
        UserError: the retriever cannot search.
    """
    waiting = iter(pairs)
    while taken := list(islice(waiting, batch)):
        yield from _searched(taken, retriever)


def question_of(instruction: str) -> str:
    """The part of an instruction that is worth searching for: its input, where it has one."""
    return instruction.partition(SELFRAG.task_input)[2].strip() or instruction


def _searched(pairs: Sequence[Pair], retriever: Retriever) -> Iterator[Row]:
    found = retriever([question_of(pair.instruction) for pair in pairs], 1)
    for pair, passages in zip(pairs, found, strict=True):
        yield evidence_row(pair, next(iter(passages), None))


def _source(pair: Pair) -> str:
    return "/".join(part for part in (pair.dataset, pair.kind) if part) or "pairs"


if __name__ == "__main__":
    sys.exit(main())
