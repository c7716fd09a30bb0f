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

from retrieval.atomic import write_json, write_pieces, writing
from selfrag.errors import UserError
from selfrag.evaluation.comparison import Draws, SystemRun, bootstrap, read_run
from selfrag.evaluation.intervals import ROUNDS
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.closed import OPTION_UNREAD
from selfrag.evaluation.metrics.effort import EFFORT
from selfrag.evaluation.metrics.fluency import REPEATED
from selfrag.evaluation.metrics.memory import MEMORY
from selfrag.evaluation.metrics.metric import ratio
from selfrag.evaluation.metrics.registry import is_count
from selfrag.evaluation.records import items_of, read_manifest
from selfrag.jsonl import read_jsonl, write_jsonl
from selfrag.untrusted import whole


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric over the items of a file.

    Attributes:
        value: the figure, a sum over a sum.
        error: standard error by bootstrap over items; None with fewer than two items.
        low: lower end of the 95% interval; None likewise.
        high: upper end.
        counted: items that the metric says something about.
    """

    value: float
    error: float | None
    low: float | None
    high: float | None
    counted: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One item with its record.

    Attributes:
        number: in the file as it was run, from 0.
        item: what was asked.
        record: as the run wrote it.
    """

    number: int
    item: Item
    record: Mapping[str, Any]

    @property
    def target(self) -> list[str]:
        """What would be right: the label of a closed set, else every reference; empty if nothing would be."""
        if self.item.label is not None and self.item.options:
            return [self.item.label]
        return list(self.item.references)

    @property
    def figures(self) -> dict[str, float | None]:
        """Each metric of this item alone; None where it says nothing."""
        return {name: ratio([part]) for name, part in self.record["scores"].items()}


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a run.

    Attributes:
        run: the system, its scores and the folder.
        manifest: of the run.
        name: of the file.
        items: by id.
        figures: metric to figure, the headline first; None where no item counts.
    """

    run: SystemRun
    manifest: Mapping[str, Any]
    name: str
    items: Mapping[str, Item]
    figures: Mapping[str, Figure | None]

    @property
    def settings(self) -> Mapping[str, Any]:
        """How the file was read and scored."""
        found: Mapping[str, Any] = self.manifest["files"][self.name]["settings"]
        return found

    @property
    def started(self) -> datetime:
        """When the run was."""
        return datetime.fromisoformat(self.manifest["about"]["time"]).astimezone(UTC)

    @property
    def key(self) -> str:
        """Tells this file of this run from every other; the same at every export."""
        text = json.dumps([self.manifest["identity"], self.name, self.settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def samples(self) -> Iterator[Sample]:
        """Items with their records, one at a time, in the order of the run.

        Raises:
            UserError: a record is of no item.
        """

        def parse(record: dict[str, Any]) -> Mapping[str, Any]:
            if record.get("id") not in self.items:
                raise UserError(f"a record of {record.get('id')!r}, which is no item of the data")
            return record

        for number, record in enumerate(read_jsonl(self.run.folder / f"{self.name}.jsonl", parse)):
            yield Sample(number, self.items[record["id"]], record)


def read_source(folder: Path, name: str, data: Path | None = None, *, seed: int = 0) -> Source:
    """Open one file of a run for export.

    Args:
        folder: of the run.
        name: of the file.
        data: folder of the data file, if it is no longer where the run read it.
        seed: of the bootstrap.

    Raises:
        UserError: no such run or file, it is not finished, its data has gone or changed.
    """
    run = read_run(folder, [name])
    found = run.files[name]
    draws = bootstrap([found.scores[metric] for metric in found.metrics], name=name, seed=seed)
    figures = {metric: _figure(one) for metric, one in zip(found.metrics, draws, strict=True)}
    return Source(run, read_manifest(folder), name, items_of(folder, name, data), figures)


def _figure(draws: Draws | None) -> Figure | None:
    if draws is None:
        return None
    found = draws.estimate
    known = draws.samples[np.isfinite(draws.samples)]
    if found.low != found.low or len(known) < 2:  # no interval: it is NaN
        return Figure(found.value, None, None, None, found.n)
    return Figure(found.value, float(np.std(known)), found.low, found.high, found.n)


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


FILTER = "none"
NEITHER = frozenset(metric.name for metric in (*EFFORT, *MEMORY))
"""Figures of which neither more nor less is better; no count is, either."""
WORSE = frozenset({OPTION_UNREAD.name, REPEATED.name})
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
    place = folder / _lm_model(sources[0])
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
    write_json(path, _lm_results(sources) | {"task_hashes": hashes})
    return path


def task_name(source: Source) -> str:
    """The file's name as lm-eval would write a task's."""
    return re.sub(r"\W", "_", source.name)


def _lm_results(sources: Sequence[Source]) -> dict[str, Any]:
    first = sources[0]
    identity, about = first.manifest["identity"], first.manifest["about"]
    tasks = {task_name(source): source for source in sources}
    read = [source.settings for source in sources]
    return {
        "results": {task: _figures(task, source) for task, source in tasks.items()},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {task: _lm_config(task, source) for task, source in tasks.items()},
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
        "model_name_sanitized": _lm_model(first),
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


def _lm_config(task: str, source: Source) -> dict[str, Any]:
    metadata = {"task": dict(source.settings["task"]), "data_sha256": source.settings["sha256"]}
    return {"task": task, "output_type": "generate_until", "metadata": metadata}


def _samples(source: Source, hashes: list[str]) -> Iterator[dict[str, Any]]:
    for sample in source.samples():
        row = _lm_sample(sample)
        hashes.append(row["doc_hash"] + row["prompt_hash"] + row["target_hash"])
        yield row


def _lm_sample(sample: Sample) -> dict[str, Any]:
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


def _lm_model(source: Source) -> str:
    return re.sub(r"[\"<>:/|\\?*\[\]]+", "__", source.run.name)
