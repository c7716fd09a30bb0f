"""Finished runs as logs of inspect-ai, which is not needed to write them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.interface import (
    Draws,
    Item,
    UserError,
    bootstrap,
    bounds_of,
    items_of,
    ratio,
    read_jsonl,
    read_manifest,
    read_run,
    replace_surrogates,
    write_pieces,
    writing,
)

INSPECT_VERSION = 2
"""Of inspect-ai's log format."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file of a finished run."""

    folder: Path  # of the run
    system: str  # name of the run
    manifest: Mapping[str, Any]  # of the run
    name: str  # of the file
    items: Mapping[str, Item]  # by id
    # metric to its bootstrap draws, the headline first; None where no item counts
    figures: Mapping[str, Draws | None]
    settings: Mapping[str, Any]  # how the file was read and scored
    result: Mapping[str, Any]  # items, failed items, seconds
    started: datetime

    def records(self) -> Iterator[tuple[Item, Mapping[str, Any]]]:
        """Items with their records, one at a time, in the order of the run.

        Raises:
            UserError: a record is of no item.
        """

        def parse(record: dict[str, Any]) -> tuple[Item, Mapping[str, Any]]:
            if record.get("id") not in self.items:
                raise UserError(
                    f"a record of {record.get('id')!r}, which is no item of the data"
                )
            return self.items[record["id"]], record

        return read_jsonl(self.folder / f"{self.name}.jsonl", parse)


def read_source(
    folder: Path, name: str, data: Path | None = None, *, seed: int = 0
) -> RunFile:
    """Open one file of a run for export.

    `data` is the folder of the data file, if it is no longer where the run read it; `seed` is that of the
    bootstrap.
    """
    run, manifest = read_run(folder, [name]), read_manifest(folder)
    run_scores, entry = run.files[name], manifest["files"][name]
    bounds = [bounds_of(metric) for metric in run_scores.metrics]
    draws = bootstrap(
        [run_scores.scores[metric] for metric in run_scores.metrics],
        name=name,
        seed=seed,
        bounds=bounds,
    )
    figures = dict(zip(run_scores.metrics, draws, strict=True))
    started = datetime.fromisoformat(manifest["about"]["time"]).astimezone(UTC)
    items = items_of(folder, name, data)
    return RunFile(
        run.folder,
        run.name,
        manifest,
        name,
        items,
        figures,
        entry["settings"],
        entry["result"],
        started,
    )


def _take_any(path: Path) -> None: ...


def write_inspect(
    source: RunFile, folder: Path, check: Callable[[Path], None] = _take_any
) -> Path:
    """Write the log of one file; its name has the form by which inspect-ai finds logs.

    `check` may refuse a path that is there already.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    names = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{source.name}-{source.system}")
    stamp = source.started.strftime("%Y-%m-%dT%H-%M-%S+00-00")
    path = folder / f"{stamp}_{names}_{_key(source)[:22]}.json"
    check(path)
    write_pieces(path, _inspect_log(source))
    return path


def _key(source: RunFile) -> str:
    """Tells this file of this run from every other; the same at every export."""
    stated = json.dumps(
        [source.manifest["identity"], source.name, source.settings], sort_keys=True
    )
    return hashlib.sha256(stated.encode()).hexdigest()


def _inspect_log(source: RunFile) -> Iterator[str]:
    """Yield the log in pieces, so that one sample is in memory at a time."""
    head = json.dumps(_inspect_head(source), ensure_ascii=False, indent=1)
    yield replace_surrogates(head.removesuffix("\n}")) + ',\n "samples": ['
    for number, (item, record) in enumerate(source.records()):
        sample = _inspect_sample(f"selfrag/{source.system}", item, record)
        text = replace_surrogates(json.dumps(sample, ensure_ascii=False))
        yield f",\n{text}" if number else f"\n{text}"
    yield "\n ]\n}\n"


def _inspect_head(source: RunFile) -> dict[str, Any]:
    result, settings, key = source.result, source.settings, _key(source)
    about, started = source.manifest["about"], source.started
    ended = started + timedelta(seconds=result["seconds"])
    scores = []
    for name, draws in source.figures.items():
        scores.append(_inspect_score(name, draws, result["items"]))
    system = source.manifest["identity"].get("system") or {}
    return {
        "version": INSPECT_VERSION,
        "status": "success",
        "eval": {
            "eval_id": key[:22],
            "run_id": key[22:44],
            "task_id": key[44:],
            "created": started.isoformat(),
            "task": source.name,
            "task_args": dict(settings["task"]),
            "solver": source.system,
            "dataset": {
                "name": source.name,
                "samples": settings["items"],
                "shuffled": False,
            },
            "model": f"selfrag/{source.system}",
            "config": {"epochs": 1, "limit": settings.get("limit")},
            "packages": dict(about["versions"]),
            "metadata": {"data_sha256": settings["sha256"], "commit": about["commit"]},
        },
        "plan": {
            "name": "selfrag",
            "steps": [{"solver": source.system, "params": system}],
        },
        "results": {
            "total_samples": result["items"],
            "completed_samples": result["items"] - result["failed"],
            "scores": scores,
        },
        "stats": {
            "started_at": started.isoformat(),
            "completed_at": ended.isoformat(timespec="seconds"),
        },
    }


def _inspect_score(name: str, draws: Draws | None, items: int) -> dict[str, Any]:
    """Return a metric; one that says nothing about any item has no value, which is not 0."""
    values, scored = dict[str, float](), 0
    if draws is not None:
        values["value"], scored = draws.value, draws.n
        if (error := _standard_error(draws)) is not None:
            estimate = draws.estimate
            values |= {
                "stderr": error,
                "ci_low": estimate.low,
                "ci_high": estimate.high,
            }
    figures = {key: {"name": key, "value": value} for key, value in values.items()}
    counts = {"scored_samples": scored, "unscored_samples": items - scored}
    return {"name": name, "scorer": name, "metrics": figures, **counts}


def _inspect_sample(
    model: str, item: Item, record: Mapping[str, Any]
) -> dict[str, Any]:
    failed = record.get("error") is not None
    text = "" if failed else record["text"]
    messages = [{"role": "user", "content": item.instruction}]
    choices = []
    if not failed:
        reply = {"role": "assistant", "content": text, "source": "generate"}
        messages.append(reply | {"model": model})
        choices.append({"message": messages[-1], "stop_reason": "stop"})
    usage = record.get("usage") or {}
    tokens = {
        "input_tokens": usage.get("prompt_tokens", 0),
        "output_tokens": usage.get("generated_tokens", 0),
    }
    tokens["total_tokens"] = sum(tokens.values())
    metadata = {}
    for key in ("cited", "read", "retrieved", "segments", "usage"):
        if key in record:
            metadata[key] = record[key]
    metadata["passages"] = [passage.as_dict() for passage in item.passages]
    scores = {}
    for name, value in _scores(record).items():
        scores[name] = {"value": value, "answer": text}
    sample: dict[str, Any] = {
        "id": item.id,
        "epoch": 1,
        "input": item.instruction,
        "target": _target(item),
        "messages": messages,
        "output": {
            "model": model,
            "choices": choices,
            "completion": text,
            "usage": tokens,
        },
        "scores": scores,
        "metadata": metadata,
    }
    if item.options:
        sample["choices"] = list(item.options)
    if failed:
        sample["error"] = {
            "message": record["error"],
            "traceback": "",
            "traceback_ansi": "",
        }
    return sample


def _target(item: Item) -> list[str]:
    """Return the label of a multiple-choice item, else every reference."""
    if item.label is not None and item.options:
        return [item.label]
    return list(item.references)


def _scores(record: Mapping[str, Any]) -> dict[str, float]:
    """Return each metric of one item that says something about it."""
    scores = {}
    for name, part in record["scores"].items():
        value = ratio([part])
        if value is not None:
            scores[name] = value
    return scores


def _standard_error(draws: Draws) -> float | None:
    """Return the standard error by bootstrap over items; None with fewer than two items."""
    known = draws.samples[np.isfinite(draws.samples)]
    if np.isnan(draws.estimate.low) or len(known) < 2:
        return None
    return float(np.std(known))
