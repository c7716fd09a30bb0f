"""Finished runs in the formats of inspect-ai and lm-eval; neither of them is needed to write them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.common.atomic import write_json, write_pieces, writing
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl, write_jsonl
from selfrag.common.untrusted import replace_surrogates
from selfrag.evaluation.comparison import Draws, bootstrap, bounds_of, read_run
from selfrag.evaluation.intervals import ROUNDS
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import EFFORT, MEMORY, REPEATED
from selfrag.evaluation.metrics.registry import is_count, ratio
from selfrag.evaluation.records import items_of, read_manifest

INSPECT_VERSION = 2
"""Of inspect-ai's log format."""
NEITHER = frozenset((*EFFORT, *(metric.name for metric in MEMORY)))
"""Figures of which neither more nor less is better; no count is, either."""
WORSE = frozenset({"option_unread", REPEATED.name})
"""Figures of which less is better."""


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


def write_inspect(source: RunFile, folder: Path) -> Path:
    """Write the log of one file; its name has the form by which inspect-ai finds logs."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    names = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{source.name}-{source.system}")
    stamp = source.started.strftime("%Y-%m-%dT%H-%M-%S+00-00")
    path = folder / f"{stamp}_{names}_{_key(source)[:22]}.json"
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


def write_lm_eval(sources: Sequence[RunFile], folder: Path) -> Path:
    """Write `results_DATE.json` and `samples_TASK_DATE.jsonl` below `folder/MODEL`; the path of the results.

    The filter is always `none`, as nothing is cut out of an answer here.
    """
    if not sources:
        raise UserError("no file to export; the run has none")
    model = re.sub(r"[\"<>:/|\\?*\[\]]+", "__", sources[0].system)
    place = folder / model
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    stamp = sources[0].started.strftime("%Y-%m-%dT%H-%M-%S.%f")
    tasks = {re.sub(r"\W", "_", source.name): source for source in sources}
    for task, source in tasks.items():
        write_jsonl(place / f"samples_{task}_{stamp}.jsonl", _lm_samples(source))
    path = place / f"results_{stamp}.json"
    write_json(path, _lm_results(tasks, model))
    return path


def _lm_results(tasks: Mapping[str, RunFile], model: str) -> dict[str, Any]:
    first = next(iter(tasks.values()))
    engine = first.manifest["identity"].get("engine")
    results, configs, better, counts = (dict[str, Any]() for _ in range(4))
    seconds = 0.0
    for task, source in tasks.items():
        settings = source.settings
        results[task] = _lm_figures(task, source)
        configs[task] = {
            "task": task,
            "output_type": "generate_until",
            "metadata": {"data_sha256": settings["sha256"]},
        }
        better[task] = {name: higher_is_better(name) for name in source.figures}
        rows, items = settings["rows"], settings["items"]
        counts[task] = {"original": rows, "effective": items}
        seconds += source.result["seconds"]
    return {
        "results": results,
        "group_subtasks": {task: [] for task in tasks},
        "configs": configs,
        "versions": dict.fromkeys(tasks, 0),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": better,
        "n-samples": counts,
        "config": {
            "model": "selfrag",
            "model_args": {"system": first.system, "engine": engine},
            "limit": first.settings.get("limit"),
            "bootstrap_iters": ROUNDS,
            "random_seed": first.settings.get("seed", 0),
        },
        "git_hash": first.manifest["about"]["commit"],
        "date": first.started.timestamp(),
        "model_source": "selfrag",
        "model_name": first.system,
        "model_name_sanitized": model,
        "total_evaluation_time_seconds": str(seconds),
    }


def higher_is_better(name: str) -> bool | None:
    """Return whether more of a figure is better; None where neither is."""
    return None if name in NEITHER or is_count(name) else name not in WORSE


def _lm_figures(task: str, source: RunFile) -> dict[str, Any]:
    values: dict[str, Any] = {
        "alias": source.name,
        "name": task,
        "sample_len": source.settings["items"],
    }
    for name, draws in source.figures.items():
        if draws is not None:
            error = _standard_error(draws)
            values[f"{name},none"] = draws.value
            values[f"{name}_stderr,none"] = "N/A" if error is None else error
    return values


def _lm_samples(source: RunFile) -> Iterator[dict[str, Any]]:
    for number, (item, record) in enumerate(source.records()):
        right, text, scores = _target(item), record.get("text", ""), _scores(record)
        yield {
            "doc_id": number,
            "doc": {
                "id": item.id,
                "instruction": item.instruction,
                "options": list(item.options),
                "references": list(item.references),
                "passages": [passage.as_dict() for passage in item.passages],
            },
            "target": str(right[0] if len(right) == 1 else right),
            "arguments": {"gen_args_0": {"arg_0": item.instruction, "arg_1": {}}},
            "resps": [[text]],
            "filtered_resps": [text],
            "filter": "none",
            "metrics": list(scores),
            **scores,
            "error": record.get("error"),
            "cited": record.get("cited", []),
        }


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
