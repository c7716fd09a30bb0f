"""A run's file as lm-eval writes them: `results_DATE.json` and `samples_TASK_DATE.jsonl` in a folder of the model.

lm-eval itself is not needed to write them. Its filter is always `none`, as nothing is cut out of an answer here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.atomic import write_json, writing
from selfrag.errors import UserError
from selfrag.evaluation.exporting.source import Sample, Source
from selfrag.evaluation.intervals import ROUNDS
from selfrag.evaluation.metrics.answers import EFFORT
from selfrag.evaluation.metrics.fluency import REPEATED
from selfrag.evaluation.metrics.memory import MEMORY
from selfrag.evaluation.metrics.registry import is_count
from selfrag.jsonl import write_jsonl

FILTER = "none"
NEITHER = frozenset((*EFFORT, *(metric.name for metric in MEMORY)))
"""Figures of which neither more nor less is better; no count is, either."""
WORSE = frozenset({"option_unread", REPEATED.name})
"""Figures of which less is better."""


def write_lm_eval(sources: Sequence[Source], folder: Path) -> Path:
    """Write the files of one run below `folder/MODEL`; the path of the results, which hold every file.

    Args:
        sources: files of one run.
        folder: of all models.

    Raises:
        UserError: no file, data and records disagree, or the folder cannot be written.
    """
    if not sources:
        raise UserError("no file to export; the run has none")
    place = folder / _model(sources[0])
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    stamp = sources[0].started.strftime("%Y-%m-%dT%H-%M-%S.%f")
    hashes = {}
    for source in sources:
        task = task_name(source)
        seen: list[str] = []
        write_jsonl(place / f"samples_{task}_{stamp}.jsonl", _samples(source, seen))
        hashes[task] = _hash("".join(seen))
    path = place / f"results_{stamp}.json"
    write_json(path, _results(sources) | {"task_hashes": hashes})
    return path


def task_name(source: Source) -> str:
    """The file's name as lm-eval would write a task's."""
    return re.sub(r"\W", "_", source.name)


def _results(sources: Sequence[Source]) -> dict[str, Any]:
    first = sources[0]
    identity, about = first.manifest["identity"], first.manifest["about"]
    tasks = {task_name(source): source for source in sources}
    read = [source.settings for source in sources]
    return {
        "results": {task: _figures(task, source) for task, source in tasks.items()},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {task: _config(task, source) for task, source in tasks.items()},
        "versions": dict.fromkeys(tasks, 0),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {
            task: {name: higher_is_better(name) for name in source.figures} for task, source in tasks.items()
        },
        "n-samples": {
            task: {"original": source.settings["rows"], "effective": source.settings["items"]}
            for task, source in tasks.items()
        },
        "config": {
            "model": "selfrag",
            "model_args": {"system": first.run.name, "engine": identity.get("engine")},
            "limit": next((settings["limit"] for settings in read if "limit" in settings), None),
            "bootstrap_iters": ROUNDS,
            "random_seed": next((settings["seed"] for settings in read if "seed" in settings), 0),
        },
        "git_hash": about["commit"],
        "date": first.started.timestamp(),
        "model_source": "selfrag",
        "model_name": first.run.name,
        "model_name_sanitized": _model(first),
        "total_evaluation_time_seconds": str(
            sum(source.manifest["files"][source.name]["result"]["seconds"] for source in sources)
        ),
    }


def higher_is_better(name: str) -> bool | None:
    """Whether more of a figure is better; None where neither is."""
    return None if name in NEITHER or is_count(name) else name not in WORSE


def _figures(task: str, source: Source) -> dict[str, Any]:
    values: dict[str, Any] = {"alias": source.name, "name": task, "sample_len": source.settings["items"]}
    for name, figure in source.figures.items():
        if figure is not None:
            values[f"{name},{FILTER}"] = figure.value
            values[f"{name}_stderr,{FILTER}"] = "N/A" if figure.error is None else figure.error
    return values


def _config(task: str, source: Source) -> dict[str, Any]:
    metadata = {"task": dict(source.settings["task"]), "data_sha256": source.settings["sha256"]}
    return {"task": task, "output_type": "generate_until", "metadata": metadata}


def _samples(source: Source, hashes: list[str]) -> Iterator[dict[str, Any]]:
    for sample in source.samples():
        row = _sample(sample)
        hashes.append(row["doc_hash"] + row["prompt_hash"] + row["target_hash"])
        yield row


def _sample(sample: Sample) -> dict[str, Any]:
    item, record = sample.item, sample.record
    text = "" if record.get("error") is not None else record["text"]
    doc = {
        "id": item.id,
        "instruction": item.instruction,
        "options": list(item.options),
        "references": list(item.references),
        "passages": [passage.as_dict() for passage in item.passages],
    }
    target = str(sample.target[0] if len(sample.target) == 1 else sample.target)
    figures = {name: value for name, value in sample.figures.items() if value is not None}
    return {
        "doc_id": sample.number,
        "doc": doc,
        "target": target,
        "arguments": {"gen_args_0": {"arg_0": item.instruction, "arg_1": {}}},
        "resps": [[text]],
        "filtered_resps": [text],
        "filter": FILTER,
        "metrics": list(figures),
        "doc_hash": _hash(json.dumps(doc, indent=2)),
        "prompt_hash": _hash(item.instruction),
        "target_hash": _hash(target),
        **figures,
        "error": record.get("error"),
        "cited": record.get("cited", []),
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _model(source: Source) -> str:
    return re.sub(r"[\"<>:/|\\?*\[\]]+", "__", source.run.name)
