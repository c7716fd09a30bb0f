"""Reflection measured on files: a model in, figures and a JSON report with manifest out. Computes no figure itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrieval.checks import whole
from selfrag.decoding.trace import decoding_dict
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.items import Item, read_items
from selfrag.evaluation.task_files import nothing_searched
from selfrag.experiments.reflection_quality import SHORT_FORM, figures, measure
from selfrag.jsonl import write_jsonl
from selfrag.provenance import commit, sha256


def evaluate(
    model: str,
    files: Sequence[Path],
    *,
    engine: str | None = None,
    where: Mapping[str, str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, dict[str, Estimate]]:
    """Measure a model on files.

    Args:
        model: checkpoint directory, hub name, or `demo`.
        files: evaluation files; all are read before the model is loaded.
        engine: `vllm`, `transformers`, or None for the best one installed.
        where: keep rows with these values only.
        limit: a seeded sample of this many rows of each file.
        seed: of sampling, passage order and intervals.
        out: where to write the report.

    Returns:
        File, as given, to figures.

    Raises:
        UserError: a file, a row or the model cannot be used.
    """
    from tqdm import tqdm

    from selfrag.api import SelfRAG
    from selfrag.loading import resolve_model

    if limit is not None:
        whole("limit", limit)
    items = {path: _sample(read_items(path, where), limit, seed) for path in files}
    report: dict[str, dict[str, Estimate]] = {}
    values: dict[str, Any] = {}
    with (
        SelfRAG.from_pretrained(model, retriever=nothing_searched, engine=engine) as rag,
        tqdm(total=sum(map(len, items.values())), unit="item") as bar,
    ):
        for path, rows in items.items():
            measured = measure(rows, rag.prompting, rag.engine, progress=bar.update)
            report[str(path)] = figures(measured, seed=seed)
            values[str(path)] = [one.as_dict() for one in measured]
    if out is not None:
        manifest = _manifest(resolve_model(model), files)
        settings = {"model": model, "engine": engine, "where": dict(where or {}), "limit": limit, "seed": seed}
        plain = {name: {key: found.as_dict() for key, found in one.items()} for name, one in report.items()}
        settings["decoding"] = decoding_dict(SHORT_FORM)
        write_jsonl(out, [{"settings": settings, "manifest": manifest, "figures": plain, "items": values}])
    return report


def _sample(items: list[Item], limit: int | None, seed: int) -> list[Item]:
    if limit is None or limit >= len(items):
        return items
    return random.Random(seed).sample(items, limit)  # noqa: S311 - no cryptography


def _manifest(model: Path, files: Sequence[Path]) -> dict[str, Any]:
    from selfrag.evaluation.machine import machine

    weights = sorted([*model.glob("*.safetensors"), *model.glob("*.json"), *model.glob("*.bin")])
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "model_files": {path.name: sha256(path) for path in weights},
        "data": {str(path): sha256(path) for path in files},
    }
