"""What a training run leaves on disk as JSON, checked when it is read: its manifest, and the lines of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from selfrag.common.errors import UserError
from selfrag.common.jsonl import JsonObject, read_jsonl
from selfrag.common.reading import read_json
from selfrag.common.validation import validate

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
CardFigure: TypeAlias = Annotated[float, Field(allow_inf_nan=True)]
"""A measured number; of a model that learns nothing it may be none."""


class GroupRecord(TypedDict):
    """Figures of one group of target positions."""

    n: Annotated[int, Field(gt=0, lt=2**63)]
    loss: CardFigure
    accuracy: CardFigure


class LossRecord(TypedDict):
    """Figures of a look at rows."""

    loss: CardFigure
    groups: dict[str, GroupRecord]


class StepRecord(LossRecord):
    """A line of the log."""

    step: Count
    tokens: Count
    seconds: Annotated[float, Field(ge=0)]
    norm: NotRequired[CardFigure | None]
    rate: NotRequired[CardFigure]
    validation: NotRequired[LossRecord]


class LoraRecord(TypedDict):
    """The size of an adapter."""

    rank: Count


class SettingsRecord(TypedDict, total=False):
    """The settings of a run, as far as more than a comparison goes by them."""

    lora: LoraRecord
    precision: str


class FactsRecord(TypedDict, total=False):
    """What a model card tells of the rows."""

    rows: Count
    tokens: Count
    examples: Count
    held_out: Count
    rows_with_shortened_passages: Count
    rows_left_out: Count | dict[str, Count]
    sources: dict[str, Count]
    rows_by_label: dict[str, Count]


class TrainingManifest(TypedDict):
    """The manifest of a run, which has more fields than these."""

    config: SettingsRecord
    inputs: NotRequired[dict[str, str]]
    facts: NotRequired[FactsRecord]


def read_manifest(path: Path) -> JsonObject:
    """Read the manifest of a run.

    Raises:
        UserError: it cannot be read, or is none.
    """
    try:
        manifest: JsonObject = read_json(path, nan=True)
        validate(TrainingManifest, manifest, others="allow")
    except UserError as error:
        raise UserError(
            f"{path} is no manifest of a training ({error}); remove it, or choose another directory"
        ) from error
    return manifest  # in the order of the file


def recorded(run_dir: Path) -> JsonObject:
    """Return the configuration of the run in a directory; empty where there is none."""
    path = run_dir / "manifest.json"
    # The precision is what it was before it was a setting.
    if path.exists():
        return {"precision": "bf16", **read_manifest(path)["config"]}
    return {}


def read_log(path: Path) -> list[StepRecord]:
    """Read the lines of a run's log.

    Raises:
        UserError: there is none, or a line is bad.
    """
    return list(read_jsonl(path, _step))


def _step(record: Any) -> StepRecord:
    return validate(StepRecord, record, others="allow")
