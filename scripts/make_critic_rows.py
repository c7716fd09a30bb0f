"""Add rows from neighbouring annotations to the critic's training rows, for longer runs.

    python scripts/make_critic_rows.py --data DATA --out runs/c/rows.jsonl
    python scripts/train_critic.py --data runs/c/rows.jsonl --out runs/c/1
    python scripts/make_critic_rows.py --data DATA --rows runs/demo/rows/*/rows.jsonl --out runs/c/more.jsonl
    python scripts/train_critic.py --data runs/c/more.jsonl --start runs/c/1/run --out runs/c/2

DATA is the folder with train/, dev/ and intrinsics/; --rows are the rows of scripts/make_demo_rows.py, whose passages
become IsRel rows. Rows that share twelve words with dev/critic.jsonl are left out.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from command import command
from critic.cases import Case, Labelled, read_labelled, rows_file
from critic.entailment import factual_sentence
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl, write_jsonl
from selfrag.prompting import SELFRAG
from selfrag.reflection.labels import ISREL
from selfrag.training.public_rows import identifier, objects, text, value
from selfrag.training.rows import Evidence, Row, Token, read_rows

SHARED_WORDS = 12
"""A run of so many equal words in a passage or in what is judged makes two rows the same text."""

_VERDICTS: Mapping[str, str] = {"true": "Fully supported", "false": "No support / Contradictory"}
_FAITHFUL: Mapping[str, str] = {
    "faithful": "Fully supported",
    "partial": "Partially supported",
    "unfaithful": "No support / Contradictory",
}
_CHOSEN = {"gold": "human", "judged": "human", "bm25": "derived", "same_article": "derived", "unanswerable": "derived"}
"""How a generator's row came to its passage, to who labelled it; rows whose passage was altered are left out."""
_MIXED = "begin"
"""Its `unfaithful` mixes partial and no support."""


def checked_claim(record: Mapping[str, Any]) -> Labelled | None:
    """A fact check with one gold passage; None for a pair of another kind.

    Raises:
        UserError: a key is missing or of the wrong type.
    """
    if record.get("kind") != "fact_check" or not record.get("gold_passages"):
        return None
    passage, *others = objects(record, "gold_passages")
    claim = text(record, "instruction").partition(SELFRAG.task_input)[2]
    label = _VERDICTS.get(text(record, "output"))
    if others or not claim or label is None:
        return None
    key, title = identifier(record, "id"), text(passage, "title")
    evidence = Passage(f"{key}/evidence", text(passage, "text"), title)
    case = Case("IsSup", factual_sentence(title), "", claim, evidence)
    return Labelled(f"pairs/{key}", case, label, text(record, "dataset"), "human", "gold_evidence")


def marked_reply(record: Mapping[str, Any]) -> Iterator[Labelled]:
    """The sentences of a reply that are marked, each against the one document.

    Raises:
        UserError: a key is missing or of the wrong type.
    """
    turns, documents, dataset = objects(record, "conversation"), objects(record, "documents"), text(record, "dataset")
    if len(documents) != 1 or not turns:
        return
    asked = next((text(turn, "content") for turn in reversed(turns) if text(turn, "role") == "user"), "")
    key, reply = identifier(record, "id"), text(turns[-1], "content")
    evidence = Passage(f"{key}/evidence", text(documents[0], "text"), text(documents[0], "title"))
    for number, sentence in enumerate(objects(record, "sentences")):
        label = _FAITHFUL.get(text(sentence, "label"))
        said, begin = text(sentence, "text").strip(), value(sentence, "begin")
        if type(begin) is not int:
            raise UserError(f"'begin' must be a whole number, not {begin!r:.60}")
        if label is None or not asked.strip() or not said or (dataset == _MIXED and sentence["label"] != "faithful"):
            continue
        case = Case("IsSup", asked, reply[:begin].strip(), said, evidence)
        yield Labelled(f"hallucination/{key}/{number}", case, label, dataset, "human", "marked_reply")


def shown_passage(row: Row) -> Labelled | None:
    """The one passage of a generator's row with its IsRel; None where there is none, or where it was altered."""
    dataset, _, rule = row.source.rpartition("/")
    tokens = {part.token for part in row.target if isinstance(part, Token)}
    labels = [label.name for label in ISREL.labels if label.token in tokens]
    passages = [part.passage for part in row.target if isinstance(part, Evidence)]
    if rule not in _CHOSEN or len(labels) != 1 or len(passages) != 1:
        return None
    case = Case("IsRel", row.instruction, evidence=passages[0])
    return Labelled(f"rows/{row.id}", case, labels[0], dataset, _CHOSEN[rule], rule)


def fresh(
    candidates: Iterable[Labelled], known: Iterable[Labelled], held_out: Iterable[Labelled]
) -> tuple[list[Labelled], Counter[str]]:
    """Candidates that are new.

    Args:
        candidates: rows that may be added.
        known: rows that are there already.
        held_out: rows to evaluate on.

    Returns:
        The new rows, and how many were left out for what reason.
    """
    seen = {_key(row) for row in known}
    forbidden = {run for row in held_out for run in _runs(row)}
    kept: list[Labelled] = []
    dropped: Counter[str] = Counter()
    for row in candidates:
        if _key(row) in seen:
            dropped["known"] += 1
        elif not forbidden.isdisjoint(_runs(row)):
            dropped["shares text with held-out rows"] += 1
        else:
            kept.append(row)
        seen.add(_key(row))
    return kept, dropped


def _key(row: Labelled) -> tuple[str, str]:
    evidence = "" if row.case.evidence is None else " ".join(_words(row.case.evidence.text)[:20])
    judged = row.case.output or row.case.instruction
    return f"{row.case.group} {' '.join(_words(judged))}", evidence


def _runs(row: Labelled) -> Iterator[tuple[str, ...]]:
    """Runs of words of the passage and of what is judged; a shorter text is one run."""
    texts = [row.case.output] + ([] if row.case.evidence is None else [row.case.evidence.text])
    for words in map(_words, texts):
        for start in range(max(1, len(words) - SHARED_WORDS + 1)) if words else ():
            yield tuple(words[start : start + SHARED_WORDS])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


@command
def main() -> int:
    """Read the command line, write the rows, print what was added and what left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, dev/ and intrinsics/")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="training rows of a generator, for IsRel")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    given = parser.parse_args()
    known = list(read_labelled(rows_file(given.data)))
    held_out = list(read_labelled(given.data / "dev" / "critic.jsonl"))
    claims = [row for row in read_jsonl(given.data / "train" / "pairs.jsonl", checked_claim) if row is not None]
    marked = given.data / "intrinsics" / "hallucination_train.jsonl"
    replies = [row for rows in read_jsonl(marked, lambda record: list(marked_reply(record))) for row in rows]
    shown = [(n, shown_passage(row)) for n, file in enumerate(given.rows, 1) for row in read_rows(file)]
    judged = [replace(row, id=f"{row.id}/{n}") for n, row in shown if row is not None]
    added, dropped = fresh([*claims, *replies, *judged], known, held_out)
    written = write_jsonl(given.out, (row.as_dict() for row in [*known, *added]))
    print(f"{written} rows, {len(added)} of them added; left out: {dict(dropped)}")
    for (dataset, label), count in sorted(Counter((f"{row.dataset}/{row.rule}", row.label) for row in added).items()):
        print(f"  {count:5} {dataset}: {label}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
