"""Training rows of the systems ours is compared with: the same pairs, without reflection tokens. Reads no file.

`text_row` is the paper's fine-tuning without retrieval (Llama2-FT): instruction and output. `evidence_row` follows
SAIL: one passage between its markers, then the output, and no critique. Both go through the same trainer, tokenizer and
layout as the generator's rows; `selfrag.evaluation.baselines` decodes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from retrieval.passage import Passage, Retriever
from selfrag.prompting import SELFRAG
from selfrag.training.rows import Evidence, Row, Text

BATCH = 256
"""Queries of one search."""


class InstructionPair(Protocol):
    """What a row is made of; `critic.pairs.Pair` is one."""

    @property
    def id(self) -> str:
        """Unique in its file."""
        ...

    @property
    def dataset(self) -> str:
        """Where it came from."""
        ...

    @property
    def kind(self) -> str:
        """Kind of task."""
        ...

    @property
    def instruction(self) -> str:
        """What the user asks."""
        ...

    @property
    def output(self) -> str:
        """The reference output."""
        ...


def text_row(pair: InstructionPair) -> Row:
    """Instruction and output, nothing else."""
    return Row(pair.id, _source(pair), pair.instruction, (Text(pair.output),))


def evidence_row(pair: InstructionPair, passage: Passage | None) -> Row:
    """The output after one passage; without a passage the same as `text_row`."""
    if passage is None or not passage.text.strip():
        return text_row(pair)
    return Row(pair.id, _source(pair), pair.instruction, (Evidence(replace(passage, score=None)), Text(pair.output)))


def text_rows(pairs: Iterable[InstructionPair]) -> Iterator[Row]:
    """Baseline (ii): a row a pair, in order."""
    return map(text_row, pairs)


def evidence_rows(pairs: Iterable[InstructionPair], retriever: Retriever, *, batch: int = BATCH) -> Iterator[Row]:
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


def _searched(pairs: Sequence[InstructionPair], retriever: Retriever) -> Iterator[Row]:
    found = retriever([question_of(pair.instruction) for pair in pairs], 1)
    for pair, passages in zip(pairs, found, strict=True):
        yield evidence_row(pair, next(iter(passages), None))


def _source(pair: InstructionPair) -> str:
    return "/".join(part for part in (pair.dataset, pair.kind) if part) or "pairs"
