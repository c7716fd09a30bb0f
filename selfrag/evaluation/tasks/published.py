"""The items of a published file, checked and worded as a preset and protocol say. Runs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.tasks.choices import Form, in_form
from selfrag.evaluation.tasks.fields import Record, passages_of
from selfrag.evaluation.tasks.preset import PAPER, Preset
from selfrag.evaluation.tasks.records import read_records


def read_published(
    path: Path, preset: Preset, protocol: str = PAPER, *, searched: bool = False, form: Form = "letters"
) -> list[Item]:
    """Read the public file of a task.

    Args:
        path: JSON Lines or a JSON array, plain or gzipped.
        preset: the task.
        protocol: decides the wording and how many passages are kept.
        searched: passages are searched for rows without any; else a row must have some.
        form: of closed sets; `letters` is what protocols ask, and `texts` leaves out their wording.

    Raises:
        UserError: a row is bad, of another schema, without passages, or an id occurs twice; names `file:line`.
    """
    how = preset.protocol(protocol)
    seen: dict[str, int] = {}

    def parse(record: Record) -> Item:
        item = preset.schema.item(record)
        place = len(seen) + 1
        name = item.id or f"row-{place}"
        if name in seen:
            raise UserError(f"id {name!r} occurs twice, first in row {seen[name]}")
        seen[name] = place
        passages = passages_of(record, needed=not searched)[: how.passages]
        asked = how.wording.worded(replace(item, id=name, passages=passages, task=preset.schema.name))
        return in_form(asked, form)

    return read_records(path, parse)
