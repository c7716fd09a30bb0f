"""An ablation as files: our rows, the published rows beside them, reliance on memory, and a manifest. Formats only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfrag.decoding.trace import decoding_dict
from selfrag.experiments.intervals import NONE, Estimate, bracketed
from selfrag.experiments.markdown_table import compact, escape
from selfrag.experiments.reporting.comparison_tables import csv_text, markdown
from selfrag.experiments.steering.ablate import Ablated
from selfrag.experiments.steering.memory import PUBLISHED
from selfrag.experiments.steering.results import brief
from selfrag.experiments.steering.table3a import published_rows
from selfrag.experiments.steering.writing import bases, write_tables


def write_ablation(found: Ablated, out: Path, about: Mapping[str, Any]) -> list[Path]:
    """Write `ablation.md`, `ablation.csv` and `ablation.json`.

    Args:
        found: the ablation.
        out: its folder.
        about: what was run, for the manifest.

    Raises:
        UserError: the folder cannot be written.
    """
    whole = f"Model {about.get('model', 'unknown')}, {bases(found.studies)}."
    text = [
        f"# Ablations at inference\n\n{escape(whole)} {found.saved}.\n",
        markdown(brief(found.comparison)),
        "## As published (Table 3a, models of 50k rows)\n",
        _table(published_rows()),
    ]
    if found.reliance:
        text += ["## Right answers that no passage holds\n", _table(reliance_rows(found.reliance))]
        text.append("".join(f"- published, {name}: {100 * share:.0f}%\n" for name, share in PUBLISHED.items()))
    plain = {
        file: {name: None if one is None else one.as_dict() for name, one in systems.items()}
        for file, systems in found.reliance.items()
    }
    rows = {
        one.file.name: {setting.name: decoding_dict(setting.decoding) for setting in one.settings}
        for one in found.studies
    }
    values = {"settings": rows, "reliance": plain, "saved": found.saved.as_dict(), **about}
    return write_tables("ablation", "\n".join(text), csv_text(found.comparison), values, out)


def reliance_rows(reliance: Mapping[str, Mapping[str, Estimate | None]]) -> list[list[str]]:
    """Header and rows: a system a row, a file a column, in percent with intervals and the number of right answers."""
    systems = list(dict.fromkeys(name for row in reliance.values() for name in row))
    body = [[escape(name), *(_percent(row.get(name)) for row in reliance.values())] for name in systems]
    return [["system", *map(escape, reliance)], *body]


def _percent(found: Estimate | None) -> str:
    return NONE if found is None else f"{bracketed(found)} of {found.n}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return compact(head, body)
