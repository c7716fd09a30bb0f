"""Published tasks in words: a table of all, and one in full. For people; nothing reads it back."""

from __future__ import annotations

from typing import Any

from selfrag.evaluation.markdown_table import compact
from selfrag.evaluation.tasks.preset import Preset
from selfrag.evaluation.tasks.presets import PRESETS

COLUMNS = ("task", "answers", "headline", "judged afterwards", "protocols", "a row of its public file has")


def rows() -> list[tuple[str, ...]]:
    """One row of text a task, under `COLUMNS`."""
    return [
        (
            one.name,
            one.kind,
            one.metrics[0],
            ", ".join(one.judged) or "-",
            ", ".join(one.protocols),
            one.schema.fields,
        )
        for one in PRESETS.values()
    ]


def overview() -> Any:
    """The table of all tasks, for rich."""
    from rich.table import Table

    table = Table()
    for column in COLUMNS[:-1]:
        table.add_column(column, no_wrap=column == COLUMNS[0], overflow="fold")
    for row in rows():
        table.add_row(*row[:-1])
    return table


def markdown() -> str:
    """The same table for a page."""
    return compact(COLUMNS, rows())


def in_full(preset: Preset) -> str:
    """One task: metrics, published figures, and each protocol with its wording, budget and settings."""
    published = [
        f"  {metric}: " + ", ".join(f"{value} ({size})" for size, value in sizes.items())
        for metric, sizes in preset.published.items()
    ]
    lines = [
        f"{preset.name}: {preset.title}",
        f"a row of its file has: {preset.schema.fields}",
        f"metrics: {', '.join(preset.metrics)}",
        f"judged afterwards: {', '.join(preset.judged) or 'none'}",
        *(["published for Self-RAG, in percent:", *published] if published else []),
    ]
    for name, how in preset.protocols.items():
        lead = f"{how.wording.instruction}{how.wording.join}" if how.wording.instruction else ""
        asked = "as the file has it" if how.wording.ask == "given" else repr(f"{lead}QUESTION")
        policy = ", ".join(f"{key}={value}" for key, value in preset.settings(name).items()) or "the defaults"
        lines += [
            f"{preset.name}/{name}:",
            f"  asks {asked}",
            f"  {how.new_tokens} tokens in up to {how.segments} segments, {how.passages} passages",
            f"  decoding: {policy if how.decoding else 'none; for systems without reflection tokens'}",
        ]
    return "\n".join(lines)
