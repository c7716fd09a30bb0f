"""The items behind the records of a run: read again from the data file that its manifest names. Reads no record."""

from __future__ import annotations

from pathlib import Path

from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.provenance import sha256
from selfrag.evaluation.runner_manifest import file_entry, read_manifest
from selfrag.evaluation.tasks.choices import recorded_form
from selfrag.evaluation.tasks.given import Given
from selfrag.evaluation.tasks.reading import read_task


def items_of(folder: Path, name: str, data: Path | None = None) -> dict[str, Item]:
    """Items by id, before any evidence was searched for them.

    Args:
        folder: of the run.
        name: of the file in it.
        data: folder where the data file is now; by default where the run read it.

    Raises:
        UserError: the run has no such file, the data file is gone or has changed, or cannot be read.
    """
    entry = file_entry(read_manifest(folder), folder, name)
    path = Path(str(entry.get("path", "")))
    path = path if data is None else data / path.name
    if not path.is_file():
        raise UserError(f"{path}: the data of {folder} is not there; say where it is now with --data FOLDER")
    if sha256(path) != entry["settings"].get("sha256"):
        raise UserError(f"{path} has changed since {folder} was run on it; give the folder of the old file by --data")
    settings = entry["settings"]
    given = Given.marked(path, settings["task"].get("preset", ""))
    return {
        item.id: item for item in read_task(given, searched="index" in settings, form=recorded_form(settings)).items
    }
