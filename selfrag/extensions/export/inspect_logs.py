"""Finished runs as logs of inspect-ai, which is not needed to write them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
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
)

INSPECT_VERSION = 2
"""Of inspect-ai's log format."""


class InspectLog:
    """The log of one file of a finished run.

    Args:
        folder: of the run.
        name: of the file.
        data: folder of the data file, if it is no longer where the run read it.
        seed: of the bootstrap.

    Attributes:
        file_name: of the log, in the form by which inspect-ai finds logs; the same at every export.
    """

    def __init__(self, folder: Path, name: str, data: Path | None, seed: int) -> None:
        run, self._manifest = read_run(folder, [name]), read_manifest(folder)
        self._file, self._name, self._system = folder / f"{name}.jsonl", name, run.name
        entry = self._manifest["files"][name]
        self._settings, self._result = entry["settings"], entry["result"]
        results = run.files[name]
        draws = bootstrap(
            [results.scores[metric] for metric in results.metrics],
            name=name,
            seed=seed,
            bounds=[bounds_of(metric) for metric in results.metrics],
        )
        self._figures = dict(zip(results.metrics, draws, strict=True))
        self._items = items_of(folder, name, data)
        time = datetime.fromisoformat(self._manifest["about"]["time"])
        self._started = time.astimezone(UTC)
        stated = [self._manifest["identity"], name, self._settings]
        text = json.dumps(stated, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        names = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{name}-{run.name}")
        stamp = self._started.strftime("%Y-%m-%dT%H-%M-%S+00-00")
        self.file_name = f"{stamp}_{names}_{self._key[:22]}.json"

    def pieces(self) -> Iterator[str]:
        """Yield the log in pieces, so that one sample is in memory at a time."""
        head = json.dumps(self._head(), ensure_ascii=False, indent=1)
        yield replace_surrogates(head.removesuffix("\n}")) + ',\n "samples": ['
        for number, sample in enumerate(read_jsonl(self._file, self._sample)):
            text = replace_surrogates(json.dumps(sample, ensure_ascii=False))
            yield f",\n{text}" if number else f"\n{text}"
        yield "\n ]\n}\n"

    def _sample(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return what became of one item; a record of none is refused."""
        item = self._items.get(record.get("id", ""))
        if item is None:
            raise UserError(
                f"a record of {record.get('id')!r}, which is no item of the data"
            )
        return _inspect_sample(f"selfrag/{self._system}", item, record)

    def _head(self) -> dict[str, Any]:
        result, settings, key = self._result, self._settings, self._key
        about, started = self._manifest["about"], self._started
        ended = started + timedelta(seconds=result["seconds"])
        scores = []
        for name, draws in self._figures.items():
            scores.append(_inspect_score(name, draws, result["items"]))
        system = self._manifest["identity"].get("system") or {}
        return {
            "version": INSPECT_VERSION,
            "status": "success",
            "eval": {
                "eval_id": key[:22],
                "run_id": key[22:44],
                "task_id": key[44:],
                "created": started.isoformat(),
                "task": self._name,
                "task_args": dict(settings["task"]),
                "solver": self._system,
                "dataset": {
                    "name": self._name,
                    "samples": settings["items"],
                    "shuffled": False,
                },
                "model": f"selfrag/{self._system}",
                "config": {"epochs": 1, "limit": settings.get("limit")},
                "packages": dict(about["versions"]),
                "metadata": {
                    "data_sha256": settings["sha256"],
                    "commit": about["commit"],
                },
            },
            "plan": {
                "name": "selfrag",
                "steps": [{"solver": self._system, "params": system}],
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
