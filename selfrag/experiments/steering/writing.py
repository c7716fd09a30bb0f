"""Sweeps and ablations as files: Markdown, CSV, JSON with a manifest, and pictures. Formats; computes no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrieval.atomic import write_json, write_text, writing
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import decoding_dict
from selfrag.evaluation.intervals import Estimate, counted
from selfrag.evaluation.markdown_table import escape
from selfrag.evaluation.metrics.registry import scale_of
from selfrag.evaluation.records import PACKAGES
from selfrag.evaluation.tables import csv_text, markdown
from selfrag.experiments.steering.choosing import Choice
from selfrag.experiments.steering.pictures import pictures_of
from selfrag.experiments.steering.results import brief
from selfrag.experiments.steering.study import FileStudy
from selfrag.experiments.steering.sweep import Swept, plain
from selfrag.provenance import commit, versions
from selfrag.untrusted import printable


def write_sweep(found: Swept, out: Path, about: Mapping[str, Any]) -> list[Path]:
    """Write `sweep.md`, `sweep.csv`, `sweep.json` and pictures.

    Args:
        found: the sweep.
        out: its folder.
        about: what was run, for the manifest.

    Returns:
        What was written.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UserError: the folder cannot be written.
    """
    tables = zip(found.comparison.tables, found.plans, strict=True)
    pictures = [path for table, laid_out in tables for path in pictures_of(found, table, laid_out, out / "plots")]
    base = f"Model {model_name(about)}, {bases(found.studies)}."
    text = [f"# Sweep\n\n{escape(base)} {found.saved}.\n", markdown(brief(found.comparison)), *sentences(found)]
    text += [f"![{path.stem}](plots/{path.name})\n" for path in pictures if path.suffix == ".svg"]
    return [
        *write_tables("sweep", "\n".join(text), csv_text(found.comparison), {**plain(found), **about}, out),
        *pictures,
    ]


def write_tables(name: str, text: str, rows: str, values: Mapping[str, Any], out: Path) -> list[Path]:
    """Write `NAME.md`, `NAME.csv` and `NAME.json`; the last with where the figures came from."""
    paths = [out / f"{name}.{ending}" for ending in ("md", "csv", "json")]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_text(paths[0], printable(text))
        write_text(paths[1], rows)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(paths[2], {"time": now, "commit": commit(), "versions": versions(PACKAGES), **values})
    return paths


def model_name(about: Mapping[str, Any]) -> str:
    """The model as a page calls it: of a folder of this machine the last part, since pages are published."""
    model = str(about.get("model", "unknown"))
    return Path(model).name if Path(model).is_absolute() else model


def described(decoding: Decoding) -> str:
    """What of a policy is not the paper's, in one line."""
    usual, own = decoding_dict(Decoding()), decoding_dict(decoding)
    changed = [f"{name}={value}" for name, value in own.items() if name != "weights" and value != usual.get(name)]
    return ", ".join([f"weights {decoding.weights}", *changed])


def bases(studies: Sequence[FileStudy]) -> str:
    """The first policy of every file, in one line; once if it is the same for all."""
    found = {one.file.name: described(one.settings[0].decoding) for one in studies}
    if len(set(found.values())) == 1:
        return f"base policy {next(iter(found.values()))}"
    return "base policies " + "; ".join(f"{name}: {policy}" for name, policy in found.items())


def sources(studies: Sequence[FileStudy]) -> dict[str, Any]:
    """The files of a study, for a manifest."""
    return {
        one.file.name: {"sha256": one.file.sha256, "rows": one.file.rows, "items": len(one.file.items), **one.file.form}
        for one in studies
    }


def sentences(found: Swept) -> list[str]:
    """Trends, their reasons and choices, one line each; shares in percent."""
    lines = []
    for one in found.studies:
        name = one.file.name
        lines += [f"- {name}, {trend}" for trend in found.trends[name]]
        lines += [f"- {name}, why: {reason}" for reason in found.reasons[name]]
        if name in found.choices:
            lines.append(f"- {name}, {chosen(found.choices[name])}")
        elif found.choices:
            lines.append(f"- {name} has no such figure as the goal asks for")
    return [*lines, ""]


def chosen(choice: Choice) -> str:
    """A choice in one sentence; shares in percent, as in the tables."""
    if choice.name is None:
        return f"goal {choice.goal}: no setting keeps to the limits on the half it is chosen by"
    metric, limits = choice.goal.metric, choice.limits or {}
    bounds = "; ".join(f"{limit}: {_figure(limits[str(limit)], limit.metric)}" for limit in choice.goal.limits)
    kept = "the limits hold there" if choice.kept else "the limits do not hold there"
    gain = "it is the base" if choice.gain is None else f"difference to the base {_figure(choice.gain, metric)}"
    best = "undefined" if choice.chosen_at is None else f"{scale_of(metric) * choice.chosen_at:.1f}"
    return (
        f"goal {choice.goal}: {choice.name} of {choice.candidates} settings within the limits,"
        f" {best} on the half it was chosen by, {_figure(choice.confirmed, metric)} on the other;"
        f" {gain}" + (f"; {bounds}, {kept}" if bounds else "")
    )


def _figure(found: Estimate | None, metric: str) -> str:
    return "undefined" if found is None else counted(found, scale=scale_of(metric))
