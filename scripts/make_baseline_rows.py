"""Make the baselines' training rows from input-output pairs, in the format that the generator is trained on.

    python scripts/make_baseline_rows.py finetuned --pairs pairs.jsonl --out runs/finetuned/rows.jsonl
    python scripts/make_baseline_rows.py sail --pairs pairs.jsonl --index INDEX --out runs/sail/rows.jsonl
    python scripts/make_baseline_rows.py sail --pairs pairs.jsonl --corpus wiki-mix.jsonl.gz --out runs/sail/rows.jsonl

`finetuned`: the output after the instruction. `sail`: the first passage found for the question, then the output. Train
both with the settings of the generator.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.passage import Passage, Retriever


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["finetuned", "sail"])
    parser.add_argument("--pairs", type=Path, required=True, help="pairs, .jsonl or .jsonl.gz")
    parser.add_argument("--index", help="sail: an index directory, or demo")
    parser.add_argument("--corpus", type=Path, help='sail: {"id","title","text"} a line, searched by BM25')
    parser.add_argument("--out", type=Path, required=True, help="the rows")
    arguments = parser.parse_args()
    try:
        print(f"{_make(arguments)} rows in {arguments.out}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _make(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from critic.pairs import read_pairs
    from selfrag.training.baselines import evidence_rows, text_rows
    from selfrag.training.rows import write_rows

    pairs = list(read_pairs(arguments.pairs))
    shown = tqdm(pairs, unit="pair", disable=None)
    if arguments.kind == "finetuned":
        return write_rows(arguments.out, text_rows(shown))
    if (arguments.index is None) == (arguments.corpus is None):
        raise UserError("sail needs passages: give --index DIR or --corpus FILE")
    if arguments.corpus is not None:
        return write_rows(arguments.out, evidence_rows(shown, _lexical(arguments.corpus), batch=len(pairs)))
    return write_rows(arguments.out, evidence_rows(shown, _indexed(arguments.index)))


def _indexed(index: str) -> Retriever:
    from selfrag.loading import load_retriever

    found = load_retriever(None if index == "demo" else index, demo=index == "demo")
    if found is None:
        raise UserError(f"no index at {index}")
    return found


def _lexical(corpus: Path) -> Retriever:
    """BM25 over a file; it is indexed anew for every batch, so all queries should go in one."""
    from demo_rows.drafts import search
    from selfrag.jsonl import read_jsonl

    passages = {p.id: p for p in read_jsonl(corpus, _passage)}
    return lambda queries, k: search(passages, queries, k)


def _passage(record: dict[str, Any]) -> Passage:
    if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
        raise UserError("a passage needs the texts 'id' and 'text'")
    return Passage(record["id"], record["text"], str(record.get("title") or ""))


if __name__ == "__main__":
    sys.exit(main())
