"""The files of the official FactScore tool: what it reads, and what it writes. Runs nothing.

`python -m factscore.factscorer --input_path FILE.jsonl` needs an environment of its own (its dependencies are of 2023)
and an OpenAI key; it writes `FILE_factscore_output.json`, whose decisions are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.evaluation.containment import abstains
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.factscore.score import Fact, Facts
from selfrag.evaluation.metrics.output import Output
from selfrag.jsonl import write_jsonl


def topic_of(item: Item) -> str:
    """Name of the person or thing that an item is about.

    Raises:
        UserError: the item has none.
    """
    if not item.topic.strip():
        raise UserError(f"item {item.id!r} has no 'topic'; FactScore looks facts up under the name of the topic")
    return item.topic


def write_input(path: Path, items: Sequence[Item], outputs: Mapping[str, Output | None]) -> int:
    """Write the tool's input, a line an item: topic and answer; an abstention and a failed item are empty answers.

    Args:
        path: of the file.
        items: in the order in which the decisions will be.
        outputs: by id of the item.

    Returns:
        The number of lines.

    Raises:
        UserError: an item has no topic or no output.
    """
    rows = []
    for item in items:
        if item.id not in outputs:
            raise UserError(f"no output for item {item.id!r}; finish the run first")
        output = outputs[item.id]
        said = "" if output is None or abstains(output.text) else output.text
        rows.append({"id": item.id, "topic": topic_of(item), "output": said})
    return write_jsonl(path, rows)


def read_output(path: Path, items: Sequence[Item]) -> dict[str, Facts]:
    """Decisions of the tool by id of the item.

    Args:
        path: of `.._factscore_output.json`.
        items: in the order of the input.

    Raises:
        UserError: it cannot be read, is no such file, or is of another number of items.
    """
    values = read_json(path, nan=True)
    decisions = values.get("decisions") if isinstance(values, dict) else None
    if not isinstance(decisions, list):
        raise UserError(f"{path} has no 'decisions'; give the file that factscore.factscorer wrote")
    if len(decisions) != len(items):
        raise UserError(f"{path} has decisions on {len(decisions)} answers, the file {len(items)} items")
    return {item.id: Facts(_facts(one, path, item)) for item, one in zip(items, decisions, strict=True)}


def _facts(decision: Any, path: Path, item: Item) -> tuple[Fact, ...]:
    match decision:
        case None:
            return ()
        case [*rows] if all(isinstance(row, dict) and isinstance(row.get("atom"), str) for row in rows):
            return tuple(Fact(row["atom"], _verdict(row.get("is_supported"), path, item)) for row in rows)
        case _:
            raise UserError(f"{path}: the decisions on item {item.id!r} are none: {decision!r:.80}")


def _verdict(value: Any, path: Path, item: Item) -> bool:
    if value in (0, 1):  # JSON has true and false, numpy's encoders numbers
        return bool(value)
    raise UserError(f"{path}: 'is_supported' of item {item.id!r} is neither true nor false: {value!r:.40}")
