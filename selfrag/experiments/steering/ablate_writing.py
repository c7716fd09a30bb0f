"""An ablation as files: our rows, the published rows beside them, reliance on memory, and a manifest. Formats only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfrag.decoding.trace import decoding_dict
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.markdown_table import compact, escape
from selfrag.evaluation.metrics.memory import PUBLISHED
from selfrag.evaluation.tables import csv_text, markdown
from selfrag.experiments.steering.ablate import Ablated
from selfrag.experiments.steering.ablation_verdicts import HEAD, ablations_against
from selfrag.experiments.steering.results import brief
from selfrag.experiments.steering.study import FileStudy
from selfrag.experiments.steering.table3a import published_rows
from selfrag.experiments.steering.writing import bases, described, model_name, write_tables

LOG_RATIO = "the published code's ratio of log-probabilities, the smaller the surer the model is that it needs evidence"
"""What is to be known of `official` on short answers."""


def write_ablation(found: Ablated, out: Path, about: Mapping[str, Any]) -> list[Path]:
    """Write `ablation.md`, `ablation.csv` and `ablation.json`.

    Args:
        found: the ablation.
        out: its folder.
        about: what was run, for the manifest.

    Raises:
        UserError: the folder cannot be written.
    """
    verdicts = ablations_against(found.comparison, found.studies)
    whole = f"Model {model_name(about)}, {bases(found.studies)}."
    text = [
        f"# Ablations at inference\n\n{escape(whole)} {found.saved}.\n",
        markdown(brief(found.comparison)),
        "## Against the paper\n",
        _table([HEAD, *(one.cells() for one in verdicts)]),
        "## Rows\n",
        _policies(found.studies),
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
    agreed = [one.as_dict() for one in verdicts]
    values = {"settings": rows, "verdicts": agreed, "reliance": plain, "saved": found.saved.as_dict(), **about}
    return write_tables("ablation", "\n".join(text), csv_text(found.comparison), values, out)


def reliance_rows(reliance: Mapping[str, Mapping[str, Estimate | None]]) -> list[list[str]]:
    """Header and rows: a system a row, a file a column, in percent with intervals and the number of right answers."""
    systems = list(dict.fromkeys(name for row in reliance.values() for name in row))
    body = [[escape(name), *(_percent(row.get(name)) for row in reliance.values())] for name in systems]
    return [["system", *map(escape, reliance)], *body]


def _policies(studies: Sequence[FileStudy]) -> str:
    """What each row is, once for files that run it alike."""
    lines = []
    for name in studies[0].outcomes:
        policies: dict[str, list[str]] = {}
        for one in studies:
            (setting,) = (setting for setting in one.settings if setting.name == name)
            policies.setdefault(described(setting.decoding), []).append(one.file.name)
        for policy, files in policies.items():
            where = f" on {', '.join(files)}" if len(policies) > 1 else ""
            inverted = f" ({LOG_RATIO})" if "retrieve_test=log_ratio" in policy else ""
            lines.append(f"- {escape(name + where)}: {escape(policy)}{inverted}\n")
    return "".join(lines)


def _percent(found: Estimate | None) -> str:
    return NONE if found is None else f"{bracketed(found)} of {found.n}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return compact(head, body)
