"""The answers of every setting as run directories, for whatever reads runs: tables, reports, exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.atomic import writing
from selfrag.evaluation.records import RunDirectory
from selfrag.evaluation.runner import Finished, record_of
from selfrag.evaluation.systems import Reflective
from selfrag.experiments.steering.saving import alone
from selfrag.experiments.steering.study import FileStudy, Study
from selfrag.jsonl import write_jsonl


def write_answers(job: Study, studies: Sequence[FileStudy], out: Path) -> list[Path]:
    """Write `out/SETTING` for every setting of a study.

    Seconds in these manifests are estimated as in `saving`, and so is the usage of answers that were replayed.

    Returns:
        The run directories, in the order of the settings.

    Raises:
        UserError: a directory holds another run, or cannot be written.
    """
    folders = []
    for setting in studies[0].settings:
        folder = out / setting.name
        system = Reflective(job.prompting, setting.decoding).as_dict()
        identity = {**job.identity, "name": setting.name, "system": system, "traces": False, "replayed": True}
        directory = RunDirectory(folder, identity)
        for one in studies:
            directory.admit(one.file, job.source)
            path = folder / f"{one.file.name}.jsonl"
            with writing(path):
                write_jsonl(path, _records(one, setting.name))
            directory.result(one.file.name, _result(one, setting.name))
        folders.append(folder)
    return folders


def _records(one: FileStudy, name: str) -> list[dict[str, Any]]:
    return [
        record_of(item, one.file.task, Finished(i, found.output, None if found.output else "see the recorded decode"))
        for i, (item, found) in enumerate(zip(one.file.items, one.outcomes[name], strict=True))
    ]


def _result(one: FileStudy, name: str) -> Mapping[str, Any]:
    row = one.outcomes[name]
    return {
        "items": len(row),
        "failed": sum(found.output is None for found in row),
        "seconds": round(alone(one, name).seconds, 3),
        "cached_tokens": 0,
    }
