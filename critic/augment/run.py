"""A whole run: source in, directory out. Killed at any moment and started again it ends with the same bytes.

Each finished shard is a file of its own below `OUT/shards`, written in one step; when all are there they become
`rows.jsonl`, `provenance.jsonl`, `dropped.jsonl` and, last, `manifest.json`. Knows no critic: whoever calls says how
shards are worked on, here or on other machines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from critic.augment.merging import file_of, fingerprint, merge
from critic.augment.options import Augmenting
from critic.augment.shards import Shard, augment_shard, sharded
from critic.augment.sources import Source
from critic.cases import Critic
from retrieval.atomic import locked_directory, write_json, write_text, writing
from retrieval.checks import whole
from retrieval.errors import UserError
from retrieval.passage import Retriever
from retrieval.reading import parse_json, read_json
from retrieval.splitting import sentence_finder

Execute: TypeAlias = Callable[[Iterator[Shard]], Iterable[tuple[Shard, str]]]
"""Works on shards as they come and gives each back with its text, in any order."""

FORMAT = "selfrag-dgen-1"
SHARD = 128
"""Items of a shard: enough to fill batches, few enough that a kill costs little."""


def augment_locally(critic: Critic, retriever: Retriever | None, options: Augmenting) -> Execute:
    """Work on one shard after the other in this process."""
    find = sentence_finder(options.sentences)

    def execute(shards: Iterator[Shard]) -> Iterator[tuple[Shard, str]]:
        for shard in shards:
            yield shard, augment_shard(shard, critic, retriever, options, find)

    return execute


def augment_pairs(
    source: Source,
    out: str | Path,
    execute: Execute,
    options: Augmenting,
    *,
    inputs: Mapping[str, Any] | None = None,
    shard: int = SHARD,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Write reflection tokens into all pairs of a source.

    Args:
        source: the pairs.
        out: directory, made if missing; may hold an interrupted run of the same settings, which goes on.
        execute: `augment_locally(..)`, or `critic.augment.cluster.augment_on_ray(..)`.
        options: how; also part of the run's identity.
        inputs: names and fingerprints of the critic and the index, part of the identity too.
        shard: items a shard, part of the identity.
        progress: show a bar with ETA on stderr; None shows it on a terminal only.

    Returns:
        The manifest.

    Raises:
        UserError: a bad row, another run in `out`, pairs that changed since the run began, a full disk, or what the
            critic raises. Finished shards stay for the next call.
    """
    whole("shard", shard)
    path = Path(out)
    identity = {
        "format": FORMAT,
        "source": source.name,
        "options": options.as_dict(),
        "inputs": dict(inputs or {}),
        "shard": shard,
    }
    identity = json.loads(json.dumps(identity))
    with locked_directory(path):
        shards = path / "shards"
        if (path / "manifest.json").exists():
            found = _same(path / "manifest.json", identity)
            if source.total() is not None and found["pairs"] != fingerprint(
                s.fingerprint for s in sharded(source, shard)
            ):
                raise UserError(f"{path} holds the finished rows of other pairs; choose another directory")
            shutil.rmtree(shards, ignore_errors=True)  # a run killed while it cleaned up
            return found
        total = source.total()
        if total == 0:
            raise UserError(f"{source.name} holds no pairs")
        with writing(shards):
            shards.mkdir(exist_ok=True)
        if (shards / "run.json").exists():
            _same(shards / "run.json", identity)
        else:
            write_json(shards / "run.json", identity)
        count = _work(source, shards, execute, shard, total, progress)
        manifest = merge(shards, count, path, identity)
        shutil.rmtree(shards, ignore_errors=True)
    return manifest


def _work(source: Source, shards: Path, execute: Execute, size: int, total: int | None, progress: bool | None) -> int:
    """Make every shard file that is missing; the number of shards."""
    from tqdm import tqdm

    number = 0
    done = size * sum(1 for _ in shards.glob("[0-9]*.jsonl"))  # not part of the speed that the ETA goes by
    done = done if total is None else min(done, total)
    disable = None if progress is None else not progress
    with tqdm(total=total, initial=done, desc="augmenting", unit="pair", disable=disable, smoothing=0.05) as bar:

        def missing() -> Iterator[Shard]:
            nonlocal number
            for shard in sharded(source, size):
                number = shard.number + 1
                if not _finished(file_of(shards, shard.number), shard):
                    yield shard

        for shard, text in execute(missing()):
            write_text(file_of(shards, shard.number), text)
            bar.update(len(shard.items))
    return number


def _finished(file: Path, shard: Shard) -> bool:
    if not file.exists():
        return False
    with file.open(encoding="utf-8") as stream:
        found = parse_json(stream.readline(), f"{file}:1")
    if not isinstance(found, dict) or found.get("fingerprint") != shard.fingerprint:
        raise UserError(
            f"{file.name}: these are not the pairs this run began with; restore them, or choose another directory"
        )
    return True


def _same(file: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier run wrote down.

    Raises:
        UserError: it was another run.
    """
    try:
        found = dict(read_json(file, nan=True))
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}); remove it, or choose another directory") from error
    for key, value in identity.items():
        if found.get(key) != value:
            differing = ", ".join(_differences(found.get(key), value)) or key
            raise UserError(
                f"{file.parent} holds a run with another {key} ({differing}): give the same settings to resume it, or"
                " choose another directory"
            )
    return found


def _differences(found: Any, value: Any) -> list[str]:
    if not (isinstance(found, dict) and isinstance(value, dict)):
        return []
    return [str(key) for key in {**found, **value} if found.get(key) != value.get(key)]
