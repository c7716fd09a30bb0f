"""A run's file as an eval log of inspect-ai (log version 2), for `inspect view` and everything that reads such logs.

The log is plain JSON; inspect-ai itself is not needed to write it. Traces stay in the run: a log holds the answer, what
was cited and read, every score, and what it cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from retrieval.atomic import write_pieces, writing
from selfrag.evaluation.exporting.source import Figure, Sample, Source
from selfrag.untrusted import whole

VERSION = 2
"""Of the log format."""


def write_inspect(source: Source, folder: Path) -> Path:
    """Write the log; its name has the form by which inspect-ai finds logs.

    Raises:
        UserError: the data and the records disagree, or the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    stamp = source.started.strftime("%Y-%m-%dT%H-%M-%S+00-00")
    path = folder / f"{stamp}_{_word(source.name)}-{_word(source.run.name)}_{source.key[:22]}.json"
    write_pieces(path, _pieces(source))
    return path


def _pieces(source: Source) -> Iterator[str]:
    """The log in pieces, so that one sample is in memory at a time."""
    head = json.dumps(_head(source), ensure_ascii=False, indent=1)
    yield whole(head.removesuffix("\n}")) + ',\n "samples": ['
    for sample in source.samples():
        yield ("," if sample.number else "") + "\n" + whole(json.dumps(_sample(source, sample), ensure_ascii=False))
    yield "\n ]\n}\n"


def _head(source: Source) -> dict[str, Any]:
    result, settings = source.manifest["files"][source.name]["result"], source.settings
    about, system = source.manifest["about"], source.manifest["identity"].get("system") or {}
    started = source.started
    spec = {
        "eval_id": source.key[:22],
        "run_id": source.key[22:44],
        "task_id": source.key[44:],
        "created": started.isoformat(),
        "task": source.name,
        "task_version": 0,
        "task_args": dict(settings["task"]),
        "solver": source.run.name,
        "dataset": {"name": source.name, "samples": settings["items"], "shuffled": False},
        "model": _model(source),
        "config": {"epochs": 1, **({"limit": settings["limit"]} if "limit" in settings else {})},
        "packages": dict(about["versions"]),
        "metadata": {"data_sha256": settings["sha256"], "commit": about["commit"]},
    }
    scores = [_score(name, figure, result["items"]) for name, figure in source.figures.items()]
    return {
        "version": VERSION,
        "status": "success",
        "eval": spec,
        "plan": {"name": "selfrag", "steps": [{"solver": source.run.name, "params": system}]},
        "results": {
            "total_samples": result["items"],
            "completed_samples": result["items"] - result["failed"],
            "scores": scores,
        },
        "stats": {
            "started_at": started.isoformat(),
            "completed_at": (started + timedelta(seconds=result["seconds"])).isoformat(timespec="seconds"),
        },
    }


def _score(name: str, figure: Figure | None, items: int) -> dict[str, Any]:
    """A metric; one that says nothing about any item has no value, which is not 0."""
    counted = 0 if figure is None else figure.counted
    values: dict[str, float | None] = {}
    if figure is not None:
        values = {"value": figure.value, "stderr": figure.error, "ci_low": figure.low, "ci_high": figure.high}
    metrics = {key: {"name": key, "value": value} for key, value in values.items() if value is not None}
    return {
        "name": name,
        "scorer": name,
        "scored_samples": counted,
        "unscored_samples": items - counted,
        "metrics": metrics,
    }


def _sample(source: Source, sample: Sample) -> dict[str, Any]:
    record, item = sample.record, sample.item
    failed = record.get("error") is not None
    text = "" if failed else record["text"]
    asked = {"role": "user", "content": item.instruction}
    reply = {"role": "assistant", "content": text, "source": "generate", "model": _model(source)}
    choice = {"message": reply, "stop_reason": "stop"}
    usage = record.get("usage") or {}
    tokens = {"input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("generated_tokens", 0)}
    tokens["total_tokens"] = sum(tokens.values())
    kept = {key: record[key] for key in ("cited", "read", "retrieved", "segments", "usage") if key in record}
    found: dict[str, Any] = {
        "id": item.id,
        "epoch": 1,
        "input": item.instruction,
        "target": sample.target,
        "messages": [asked] if failed else [asked, reply],
        "output": {"model": _model(source), "choices": [] if failed else [choice], "completion": text, "usage": tokens},
        "scores": {
            name: {"value": value, "answer": text} for name, value in sample.figures.items() if value is not None
        },
        "metadata": kept | {"passages": [passage.as_dict() for passage in item.passages]},
    }
    if item.options:
        found["choices"] = list(item.options)
    if failed:
        found["error"] = {"message": record["error"], "traceback": "", "traceback_ansi": ""}
    return found


def _model(source: Source) -> str:
    return f"selfrag/{source.run.name}"


def _word(text: str) -> str:
    """What may stand between the underscores of a log's name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)
