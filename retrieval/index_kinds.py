"""Kinds of dense search, and what a manifest says of an approximate one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from selfrag.common.checks import number, whole
from selfrag.common.errors import UserError

KINDS = ("auto", "flat", "rabitq", "ivf")
_FLAT_ROWS, _RABITQ_ROWS = 50_000, 500_000  # `auto` is flat, then rabitq up to these numbers of rows


@dataclass(frozen=True, slots=True)
class DenseCard:
    """An approximate index, its settings and what they reach."""

    factory: str  # faiss's description of it, such as `RR384,IVF4096,RaBitQfs`
    nprobe: int  # lists that a search visits; 0 where there are none
    candidates: int  # rows that a search scores exactly
    # mean share of the exact 10 best that it finds, over vectors as far from the passages as questions are
    recall: float
    recall_low: float  # lower end of the 95% interval of `recall`
    queries: int  # number of those vectors

    def __post_init__(self) -> None:
        whole("nprobe", self.nprobe, 0)
        whole("candidates", self.candidates)
        number("recall", self.recall, 0, 1)


def factory_of(kind: str, rows: int, dim: int) -> str:
    """Faiss's description of a kind for n `rows` of length `dim`, empty for flat; a description stays as it is."""
    if kind == "auto":
        kind = "flat" if rows <= _FLAT_ROWS else "rabitq" if rows <= _RABITQ_ROWS else "ivf"
    if kind in ("flat", "rabitq"):
        return "" if kind == "flat" else "RaBitQfs"
    if kind == "ivf":
        lists = 1 << max(0, round(math.log2(2 * math.sqrt(rows))))
        return f"RR{dim},IVF{min(lists, rows)},RaBitQfs"
    if kind.lower() == kind or not kind.isprintable():  # faiss's own names have capitals
        raise UserError(f"kind={kind!r:.80}: choose one of {', '.join(KINDS)}, or give faiss's factory string")
    return kind
