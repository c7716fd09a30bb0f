"""Table 2 of the Self-RAG paper (arXiv 2310.11511) as data: every row, its figures in percent, and how it can be run.

Tolerances are percentage points on the whole public file. Where they come from: reruns of the official code by third
parties differ from the paper by at most 0.5 on the four short tasks, and the paper's own formula by 0.9; on ASQA the
same reruns get 3.0 points less citation precision and 17.7 less recall, so a recall far below 67.8 is no news.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from selfrag.common.checks import check_choice
from selfrag.common.errors import UserError
from selfrag.evaluation.presets import PRESETS

COLUMNS = (
    ("popqa", "official_match"),
    ("triviaqa", "official_match"),
    ("pubhealth", "accuracy"),
    ("arc-challenge", "accuracy"),
    ("biographies", "factscore"),
    ("asqa", "str_em"),
    ("asqa", "rouge_lsum"),
    ("asqa", "mauve"),
    ("asqa", "citation_precision_nli"),
    ("asqa", "citation_recall_nli"),
)
"""Task and metric of each column, by the names of this library."""
TASKS = tuple(dict.fromkeys(task for task, _ in COLUMNS))
GREEDY = (1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 5.0, 5.0, 5.0)
"""Tolerances of Self-RAG's own rows, decoded greedily; FactScore and MAUVE depend on a second model too."""
SAMPLED = (5.0,) * len(COLUMNS)
"""Tolerances of baselines: the paper sampled them at temperature 0.8, ours are greedy, and they vary with wording."""

Cell = float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    name: str  # on the command line
    title: str  # in the paper
    # in percent, in the order of `COLUMNS`; None where the paper has none
    figures: tuple[Cell, ...]
    system: str = ""  # of ours that stands for it; empty if it cannot be run
    checkpoint: str = ""  # public weights; empty if whoever runs it has to name some
    settings: tuple[str, ...] = ()  # of the system, KEY=VALUE
    note: str = ""  # what a reader must know, or why it cannot be run
    # whether an OpenAI-compatible endpoint answers, `--model MODEL@URL`
    is_endpoint: bool = False

    def protocol(self, task: str, *, letter: bool = False) -> str:
        """Return the baselines' protocol; for Self-RAG's rows the released code's, or the paper's by the letter."""
        if self.system != "selfrag":
            return "baseline"
        if not letter:
            return "official"
        return "table-5" if "table-5" in PRESETS[task].protocols else "paper"

    def columns(self, *, letter: bool = False) -> tuple[tuple[str, str], ...]:
        """Return task and metric of each column.

        Baselines write their choice (B.2), so the option is read off their text. The released code matches strings.
        """
        names = {"accuracy": "option_match"}
        if self.system == "selfrag":
            names = {"accuracy": "accuracy" if letter else "official_match"}
        return tuple((task, names.get(metric, metric)) for task, metric in COLUMNS)

    @property
    def tolerances(self) -> tuple[float, ...]:
        """Return percentage points, in the order of `COLUMNS`."""
        return GREEDY if self.system == "selfrag" else SAMPLED

    def runnable(self, model: str | None = None) -> str:
        """Return the checkpoint to run.

        Raises:
            UserError: the row cannot be run, or needs weights that are not published.
        """
        if not self.system:
            raise UserError(f"{self.name} cannot be run again: {self.note}")
        if model is None and not self.checkpoint:
            raise UserError(f"{self.name} needs --model CHECKPOINT: {self.note}")
        return model or self.checkpoint


CITED = "the paper quotes the figures of others, whose system is not public"


def _read_rows() -> Iterator[Row]:
    text = files(__package__).joinpath("table2.toml").read_text(encoding="utf-8")
    for values in tomllib.loads(text)["rows"]:
        figures = [None if math.isnan(value) else value for value in values["figures"]]
        values["settings"] = tuple(values.get("settings", ()))
        yield Row(**values | {"figures": tuple(figures)})


ROWS = {row.name: row for row in _read_rows()}
"""By name, in the order of the paper."""


def row(name: str) -> Row:
    """Return a row by its name.

    Raises:
        UserError: there is none; names the known ones.
    """
    check_choice("row", name, ROWS)
    return ROWS[name]
