"""Ablations (the paper's Table 3a), and reliance on memory beside other systems' runs.

Rows at inference change the policy of the model. Rows of training are models of their own, trained without passages or
without reflection tokens. Beside each stands how many answers it changes, without which it can show no difference.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

from selfrag.evaluation.comparison import Comparison, ComparisonTable, estimate_of
from selfrag.evaluation.intervals import NONE, bracketed, json_values
from selfrag.evaluation.items import OUTPUT, Output
from selfrag.evaluation.metrics.answers import (
    FLUENCY,
    FROM_MEMORY_SUBSTRING,
    MEMORY,
    PUBLISHED_MEMORY,
)
from selfrag.evaluation.metrics.registry import is_count
from selfrag.evaluation.published import why_left_out
from selfrag.evaluation.records import read_manifest, read_records
from selfrag.evaluation.runner import Model, Source, run_systems
from selfrag.evaluation.tables import brief, csv_text, markdown
from selfrag.evaluation.task import SHORT
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.studies import (
    FileStudy,
    Setting,
    SettingOutcome,
    opened,
    spared,
    study,
    write_answers,
)
from selfrag.experiments.sweeps import (
    based,
    bases,
    comparison,
    described,
    measured_by,
    model_name,
    record_of,
    write_tables,
)
from selfrag.interface import (
    Decoding,
    Estimate,
    Task,
    UserError,
    bootstrap,
    read_runs,
    resolve_model,
)
from selfrag.render.tables import escape, markdown_table

WHOLE = "selfrag"
"""Name of the policy that the others take something from."""
TRAINED: Mapping[str, str] = {"no-retriever": "finetuned-rag", "no-critic": "sail"}
"""Rows of training to the system that asks their models: each reads passages, as its published figures did."""
PUBLISHED: Mapping[str, Mapping[str, float]] = tomllib.loads(
    resources.files(__package__).joinpath("table_3a.toml").read_text(encoding="utf-8")
)
"""Table 3a: row to figures of the files that it has."""
LOG_RATIO = "the published code's ratio of log-probabilities, the smaller the surer the model is that it needs evidence"
"""What is to be known of `official` on short answers."""
HEAD = ("row", "file", "answers changed", "difference", "published difference")


def ablations(base: Decoding, task: Task) -> tuple[Setting, ...]:
    """Return the rows of the table for one task; the whole comes first.

    `hard-constraints` retrieves where Retrieve=Yes is the most probable token, in place of the threshold.
    `forbid-unsupported` is not in the paper's table: its hard constraint of section 3.3, in the search. `official` is
    `Decoding.official` for answers of this length; multiple choice is written under it, and passages vote.
    """
    official = Decoding.official(
        max_segments=task.segments,
        passages=base.passages,
        passage_tokens=base.passage_tokens,
    )
    return (
        Setting(WHOLE, base),
        Setting("no-retrieval", replace(base, mode="never")),
        Setting("hard-constraints", replace(base, mode="adaptive", threshold=None)),
        Setting("retrieve-top-1", replace(base, mode="always", passages=1)),
        Setting(
            "remove-issup", replace(base, weights=replace(base.weights, issup=0.0))
        ),
        Setting("always", replace(base, mode="always")),
        Setting(
            "forbid-unsupported",
            replace(base, forbid={"issup": "No support / Contradictory"}),
        ),
        Setting("official", official),
    )


@dataclass(frozen=True, slots=True)
class Ablated:
    """What the ablations found."""

    studies: tuple[FileStudy, ...]  # one a file
    comparison: Comparison  # all rows against the whole
    # file to system to the share of its right answers that no passage holds; files without short answers are
    # missing. Rows of the ablation and baselines
    reliance: Mapping[str, Mapping[str, Estimate | None]]


def ablate(
    changes: Mapping[str, Any],
    model: Model,
    source: Source,
    out: Path,
    *,
    baselines: Sequence[Path] = (),
    trained: Mapping[str, str] | None = None,
    seed: int = 0,
    retry_failed: bool = False,
) -> Ablated:
    """Run the rows of `ablations`, each into the run directory `out/rows/NAME`.

    `changes` are fields of `Decoding` that differ from the paper's policy, or from that of a published task.
    `baselines` are runs of other systems over the same files; `trained` has the checkpoints of rows of `TRAINED`.
    """
    for checkpoint in (trained or {}).values():
        resolve_model(checkpoint)
    files = [measured_by(file, (*FLUENCY, *MEMORY)) for file in source.load()]
    others = _runs_by_name(baselines)
    theirs: dict[str, dict[str, Estimate | None]] = {}
    for file in files:
        by_system = theirs[file.name] = {}
        for name, folder in others.items():
            by_system[name] = _reliance(folder, file, seed)
    with opened(model, out, source.settings(), retry_failed=retry_failed) as job:
        studies = [
            study(job, file, ablations(based(changes, file.task), file.task))
            for file in files
        ]
        folders = write_answers(job, studies, out / "rows")
    for name, checkpoint in (trained or {}).items():
        run_systems(
            {name: TRAINED[name]},
            replace(model, model=checkpoint),
            files,
            out / "rows",
            source=source.settings(),
            retry_failed=retry_failed,
        )
        folders.append(out / "rows" / name)
    compared = comparison(
        studies, read_runs(folders, [file.name for file in files]), seed
    )
    reliance = {}
    for table, file in zip(compared.tables, files, strict=True):
        if any(item.answers and item.passages for item in file.items):
            ours = {}
            for row in table.rows:
                ours[row.system] = row.figures.get(FROM_MEMORY_SUBSTRING.name)
            reliance[table.name] = ours | theirs[table.name]
    return Ablated(tuple(studies), compared, reliance)


def _reliance(folder: Path, file: TaskFile, seed: int) -> Estimate | None:
    """Return the share of a run's right answers that no passage of the item holds; None where that says nothing."""
    records = read_records(
        folder / f"{file.name}.jsonl", ("id", "scores", "error", *OUTPUT)
    )
    outputs = {record["id"]: Output.from_record(record) for record in records}
    parts = []
    for item in file.items:
        if item.id not in outputs:
            raise UserError(
                f"{folder} has no item {item.id!r} of {file.name}; give a run over the same items"
            )
        parts.append(FROM_MEMORY_SUBSTRING.part(item, outputs[item.id]))
    (draws,) = bootstrap([parts], name=file.name, seed=seed)
    return estimate_of(draws)


def _runs_by_name(folders: Sequence[Path]) -> dict[str, Path]:
    """Return runs by the name of their system, which is none of our rows."""
    known: dict[str, Path] = {}
    ours = {*TRAINED, *(setting.name for setting in ablations(Decoding(), SHORT))}
    for folder in folders:
        name = str(read_manifest(folder)["identity"].get("name", folder.name))
        if name in known or name in ours:
            raise UserError(
                f"--baseline {folder}: two systems called {name!r}; rename one"
            )
        known[name] = folder
    return known


def against_paper(
    compared: Comparison, studies: Sequence[FileStudy]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return head and rows: the paper's rows on every file and on average, shares in percent.

    Without a file that is the paper's, there is no column of published differences.
    """
    rows: list[tuple[str, ...]] = []
    systems = {row.system for row in compared.tables[0].rows}
    left_out = why_files_left_out(studies)
    for name in PUBLISHED:
        if name == WHOLE or name not in systems:
            continue
        for table, of_file in zip(compared.tables, studies, strict=True):
            paper = NONE
            if not left_out[table.name]:
                paper = published_difference(name, data_set(of_file))
            changed = _changed(of_file, WHOLE, name)
            difference = _difference(table, name)
            rows.append((name, table.name, changed, difference, paper))
        if (average := compared.average) is not None:
            difference = _difference(average, name)
            rows.append((name, average.name, NONE, difference, NONE))
    if "" in left_out.values():
        return HEAD, rows
    return HEAD[:-1], [line[:-1] for line in rows]


def data_set(of_file: FileStudy) -> str:
    """Return the published task that a file is of; empty for a user's own file."""
    return (of_file.file.task.preset or "").partition("/")[0]


def why_files_left_out(studies: Sequence[FileStudy]) -> dict[str, str]:
    """Return why the paper's figures are left out beside each file; empty where both are of the same."""
    reasons = {}
    for of_file in studies:
        task, count = of_file.file.task, len(of_file.file.items)
        data, metric = data_set(of_file), task.metrics[0].name
        reasons[of_file.file.name] = why_left_out("selfrag-3a", data, count, metric)
    return reasons


def published_difference(row: str, file: str) -> str:
    """Return what the paper's row loses on a file, in percentage points; a dash where the paper has no figure."""
    ours, full_system = PUBLISHED[row].get(file), PUBLISHED[WHOLE].get(file)
    return NONE if ours is None or full_system is None else f"{ours - full_system:+.1f}"


def _changed(of_file: FileStudy, first: str, second: str) -> str:
    """Count the items whose answer or citations differ between two settings; a dash for another model."""
    if second not in of_file.outcomes:
        return NONE
    changed = 0
    for before, after in zip(
        of_file.outcomes[first], of_file.outcomes[second], strict=True
    ):
        changed += _said(before) != _said(after)
    return f"{changed} of {len(of_file.file.items)}"


def _said(outcome: SettingOutcome) -> tuple[str, tuple[str, ...]] | None:
    output = outcome.written
    return None if output is None else (output.text, output.cited)


def _difference(table: ComparisonTable, name: str) -> str:
    """Format the paired difference of the headline to the full system, or a dash for counts."""
    head = table.metrics[0]
    (row,) = (row for row in table.rows if row.system == name)
    difference = row.differences.get(head)
    if difference is None or is_count(head):
        return NONE
    return bracketed(difference)


def write_ablation(ablated: Ablated, out: Path, about: Mapping[str, Any]) -> list[Path]:
    """Write `ablation.md`, `ablation.csv` and `ablation.json`: our rows, and the published ones beside them."""
    summary = f"Model {model_name(about)}, {bases(ablated.studies)}."
    text = [
        f"# Ablations\n\n{escape(summary)} {spared(ablated.studies)}.\n",
        markdown(brief(ablated.comparison)),
        "## Against the paper\n",
        markdown_table(*against_paper(ablated.comparison, ablated.studies)),
        "## Rows\n",
        _policies(ablated.studies),
    ]
    reasons = why_files_left_out(ablated.studies)
    text += [f"{name}: {reason}.\n" for name, reason in reasons.items() if reason]
    if ablated.reliance:
        head, *body = reliance_rows(ablated.reliance)
        text += [
            "## Right answers that no passage holds, by exact substrings (appendix C.1)\n",
            markdown_table(head, body),
        ]
        counts = {}
        for of_file in ablated.studies:
            if data_set(of_file) in ("popqa", "triviaqa"):
                counts[data_set(of_file)] = len(of_file.file.items)
        count, both = sum(counts.values()), " and ".join(counts)
        metric = FROM_MEMORY_SUBSTRING.name
        published = why_left_out("selfrag-3a-memory", both, count, metric)
        if not published:
            for name, share in PUBLISHED_MEMORY.items():
                published += f"- published, {name}: {100 * share:.0f}%\n"
        text.append(published)
    values = {
        **record_of(ablated.studies),
        "reliance": json_values(ablated.reliance),
        **about,
    }
    return write_tables(
        "ablation", "\n".join(text), csv_text(ablated.comparison), values, out
    )


def reliance_rows(
    reliance: Mapping[str, Mapping[str, Estimate | None]],
) -> list[list[str]]:
    """Return header and rows: a system a row, a file a column, in percent with intervals and the right answers."""
    rows: dict[str, list[str]] = {}
    for name in chain.from_iterable(reliance.values()):
        rows[name] = [escape(name)]
    for estimates in reliance.values():
        for name, row in rows.items():
            estimate = estimates.get(name)
            row.append(
                NONE if estimate is None else f"{bracketed(estimate)} of {estimate.n}"
            )
    return [["system", *map(escape, reliance)], *rows.values()]


def _policies(studies: Sequence[FileStudy]) -> str:
    """Return what each row is, once for files that run it alike."""
    lines = []
    for name in studies[0].outcomes:
        policies: dict[str, list[str]] = {}
        for of_file in studies:
            (setting,) = (
                setting for setting in of_file.settings if setting.name == name
            )
            policies.setdefault(described(setting.decoding), []).append(
                of_file.file.name
            )
        for policy, files in policies.items():
            row, text = name, escape(policy)
            if len(policies) > 1:
                row += f" on {', '.join(files)}"
            if "retrieve_test=log_ratio" in policy:
                text += f" ({LOG_RATIO})"
            lines.append(f"- {escape(row)}: {text}\n")
    return "".join(lines)
