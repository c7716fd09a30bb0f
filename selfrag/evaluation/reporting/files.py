"""Writing a comparison: the file's ending says as what. Computes no figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retrieval.atomic import write_text, writing
from selfrag.errors import UserError
from selfrag.evaluation.reporting.comparison_tables import csv_text, markdown
from selfrag.evaluation.reporting.page import Report, render
from selfrag.evaluation.reporting.plots import draw
from selfrag.plotting import FORMATS, save

TEXTS: dict[str, Callable[[Report], str]] = {
    ".html": render,
    ".md": lambda report: markdown(report.comparison),
    ".csv": lambda report: csv_text(report.comparison),
}
"""Ending of a file -> its text."""
ENDINGS = (*TEXTS, *FORMATS)


def check_ending(out: Path) -> Path:
    """The same path, if its ending says what to write.

    Raises:
        UserError: it does not.
    """
    if out.suffix not in ENDINGS:
        raise UserError(f"{out}: cannot tell what to write; the file must end in {', '.join(ENDINGS)}")
    return out


def write(report: Report, out: Path) -> Path:
    """Write one file: a page (`.html`), tables (`.md`, `.csv`) or plots (`.png`, `.svg`, `.pdf`).

    Args:
        report: what to show; only a page shows its items.
        out: replaced in one step; its folder is made.

    Raises:
        UserError: another ending, or the place cannot be written.
        MissingExtraError: matplotlib is not installed and is needed.
    """
    check_ending(out)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix in TEXTS:
        write_text(out, TEXTS[out.suffix](report))
        return out
    return save(draw(report.comparison), out)
