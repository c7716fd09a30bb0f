"""Tells raised and lowered text in a line of a PDF by its baseline and its size, and writes it as such.

A PDF only says where a character stands. Text is raised or lowered that stands on another baseline than the line and is
smaller, or that is moved by the text-rise operator alone: footnote marks, exponents, indexes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from selfrag.interface import write_script

_WORD = re.compile(r"\w|/")  # a fraction may stand alone
_SMALLEST = 0.45  # size of raised text, as a share of that of the line
_SMALLER = 0.92  # a larger one is as large as the line
_LEAST_SHIFT = 0.04  # of smaller text beside a word, in heights of the line
_LEAST_SHIFT_APART = 0.12  # of smaller text after a space
_SMALLER_APART = 0.85
_LEAST_RISE = 0.2  # of text that is as large as the line
_MOST_SHIFT = 0.9
SAME_BASELINE = 0.1
"""Points up to which two characters stand on one line."""

Box: TypeAlias = tuple[float, float, float, float]
"""Left, bottom, right and top."""


class LinePiece(NamedTuple):
    """Characters of a line without a space between them, with their positions on the page."""

    text: str
    first: int
    end: int


SPACE = LinePiece(" ", 0, 0)
"""Stands between two words of a line."""


@dataclass(slots=True)
class _Run:
    """Characters of a piece on one baseline."""

    text: str
    baseline: float = 0.0
    height: float = 0.0
    after_space: bool = True


def write_pieces(
    pieces: Sequence[LinePiece],
    baselines: Sequence[float],
    height_of: Callable[[int, int], float],
) -> str:
    """Return the text of a line. Raised and lowered text is written as such.

    Args:
        pieces: of the line.
        baselines: the heights at which its characters stand, from the first one on.
        height_of: how high the characters between two positions of the page are.
    """
    origin = pieces[0].first
    runs: list[_Run] = []
    after_space = True
    for piece in pieces:
        if piece is SPACE:
            runs.append(_Run(" "))
        else:
            heights = baselines[piece.first - origin : piece.end - origin]
            runs += _split(piece, heights, height_of, after_space)
        after_space = piece is SPACE
    worded = [run for run in runs if _WORD.search(run.text)]
    if len({run.baseline for run in worded}) > 1:
        base = max(worded, key=lambda run: (run.height, len(run.text)))
        peers = [run for run in worded if run.height > _SMALLER * base.height]
        base = max(peers, key=lambda run: _count_on(run.baseline, peers))
        return "".join(_write_run(run, base) for run in runs)
    return "".join(run.text for run in runs)


def _split(
    piece: LinePiece,
    baselines: Sequence[float],
    height_of: Callable[[int, int], float],
    after_space: bool,
) -> list[_Run]:
    """Return the parts of a piece that stand on one baseline each."""
    runs: list[_Run] = []
    begin = 0
    for end in range(1, len(baselines) + 1):
        baseline = baselines[begin]
        if end < len(baselines) and abs(baselines[end] - baseline) < SAME_BASELINE:
            continue
        height = height_of(piece.first + begin, piece.first + end)
        apart = after_space and not runs
        runs.append(_Run(piece.text[begin:end], baseline, height, apart))
        begin = end
    return runs


def _count_on(baseline: float, runs: Sequence[_Run]) -> int:
    """Return how many characters stand on a baseline."""
    near = [
        run for run in runs if abs(run.baseline - baseline) <= _LEAST_SHIFT * run.height
    ]
    return sum(len(run.text) for run in near)


def _write_run(run: _Run, base: _Run) -> str:
    """Return the text of a run, as raised or lowered where it is, and apart where it stands on another line."""
    if not run.height or not base.height:
        return run.text
    size = run.height / base.height
    shift = (run.baseline - base.baseline) / base.height
    if abs(shift) > _MOST_SHIFT:
        return f" {run.text} "
    least = _LEAST_SHIFT
    if size > _SMALLER:
        least = _LEAST_RISE
    elif run.after_space:
        least = _LEAST_SHIFT_APART
        if size > _SMALLER_APART:
            return run.text
    # behind a large first digit: no number is set in two sizes
    is_exponent = (base.text + run.text).isdigit() and not run.after_space
    if (size < _SMALLEST and not is_exponent) or abs(shift) < least:
        return run.text
    return write_script(run.text, raised=shift > 0)
