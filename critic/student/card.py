"""`critic.json` beside a checkpoint: what a critic must be asked with. Without it a checkpoint is no critic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from critic.student.codec import Limits, PromptCodec
from critic.student.layout import Layout
from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.jsonl import write_jsonl

NAME = "critic.json"
FORMAT = 1


def write_card(directory: Path, codec: PromptCodec) -> Path:
    """Write the codec's settings; returns the directory."""
    write_jsonl(directory / NAME, [{"format": FORMAT, "prompt": codec.fingerprint, **codec.as_dict()}])
    return directory


def read_card(directory: Path, tokenizer: Any) -> PromptCodec:
    """The codec that a critic was trained with.

    Raises:
        UserError: there is no card, it cannot be read, or it belongs to another tokenizer.
    """
    path = directory / NAME
    if not path.exists():
        raise UserError(f"{directory} holds no {NAME}: it is no critic, or its training did not end")
    try:
        record = read_json(path)
        if record["format"] != FORMAT:
            raise UserError(f"{path} has format {record['format']!r}; this version reads {FORMAT}")
        layout, limits = Layout(**record["layout"]), Limits(**record["limits"])
        fingerprint = record["prompt"]
    except (UserError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be used: {error}; train the critic again") from error
    codec = PromptCodec.from_tokenizer(tokenizer, layout, limits)
    if codec.fingerprint != fingerprint:
        raise UserError(f"{path} belongs to another tokenizer than the one in {directory}; copy both together")
    return codec
