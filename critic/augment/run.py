"""A whole run: pairs in, a directory of rows out. Killed at any moment and started again it ends with the same bytes.

Work goes shard by shard. Whatever works on a shard (this process, another machine) gives the same rows for it. Each
finished shard is a line of `OUT/shards.jsonl`; when all are there they become `rows.jsonl`, `provenance.jsonl`,
`dropped.jsonl` and, last, `manifest.json`.

The size of a run is told before it begins. Its figures are upper bounds: every pair retrieves, every sentence and
passage is judged, and nothing is shared.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, TypeAlias

from critic.augment.algorithm import Augmented, AugmentOptions, augment, segments
from critic.augment.rows import outcome
from critic.judging import Critic, serve_in_order
from critic.pairs import Dropped, Pair, PairSource
from selfrag.cluster import Actors, on_actors, require_ray
from selfrag.common.atomic import locked_directory
from selfrag.common.jsonl import JsonObject
from selfrag.common.runs import RunLog, check_same_run
from selfrag.interface import (
    Failed,
    Progress,
    RequestResult,
    Retrieve,
    Retriever,
    SentenceFinder,
    Steps,
    UserError,
    check_int,
    commit,
    count_of,
    finish,
    read_json,
    sentence_finder,
    sha256,
    versions,
    write_json,
    write_jsonl,
)
from selfrag.reflection.requests import Request, gather

FORMAT = "selfrag-dgen-1"
SHARD = 128
"""Pairs of a shard: enough to fill batches, few enough that a kill costs little."""

_FILES = ("rows.jsonl", "provenance.jsonl", "dropped.jsonl")

Outcome: TypeAlias = dict[str, Any]
"""What a run keeps of a pair, as `critic.augment.rows.outcome` makes it."""


@dataclass(frozen=True, slots=True)
class PairShard:
    """Some pairs in the order of the source."""

    number: int
    pairs: tuple[Pair, ...]

    @property
    def fingerprint(self) -> str:
        """Return a digest that changes with any of its pairs."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            line = json.dumps(pair.as_dict(), ensure_ascii=False) + "\n"
            digest.update(line.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


ExecuteShards: TypeAlias = Callable[
    [Iterator[PairShard]], Iterable[tuple[PairShard, list[Outcome]]]
]
"""Works on shards as they come and gives each back with the outcomes of its pairs, in any order."""


def sharded(pairs: Iterable[Pair], size: int) -> Iterator[PairShard]:
    """Yield shards of `size` pairs; the last one may be smaller."""
    remaining = iter(pairs)
    for number in count():
        chunk = tuple(islice(remaining, size))
        if not chunk:
            return
        yield PairShard(number, chunk)


def augment_locally(
    critic: Critic, retriever: Retriever | None, options: AugmentOptions
) -> ExecuteShards:
    """Return what works on one shard after the other in this process."""
    find = sentence_finder(options.sentences)

    def execute(
        shards: Iterator[PairShard],
    ) -> Iterator[tuple[PairShard, list[Outcome]]]:
        for shard in shards:
            yield shard, augment_shard(shard, critic, retriever, options, find)

    return execute


def augment_shard(
    shard: PairShard,
    critic: Critic,
    retriever: Retriever | None,
    options: AugmentOptions,
    find: SentenceFinder,
) -> list[Outcome]:
    """Return the outcome of each pair of a shard: its rows, or why there is none."""
    results = augment_together(shard.pairs, critic, retriever, options, find)
    return [outcome(result, options) for result in results]


def augment_together(
    pairs: Sequence[Pair],
    critic: Critic,
    retriever: Retriever | None,
    options: AugmentOptions,
    find: SentenceFinder,
) -> list[Augmented | Dropped]:
    """Augment pairs side by side: in each round one batch for the judges and one search for all that wait.

    Rounds are lockstep on purpose. A batch then depends on the pairs alone, not on which answer came first. A critic
    whose numbers depend on the batch gives the same labels after any interruption. A search that fails alone drops its
    pair; a `UserError` ends the run if the critic failed, or every search of a round of several did.
    """
    steps = [augment(pair, options, find, critic.steps) for pair in pairs]
    return finish(
        gather(steps, partial(_serve_round, retriever is not None)),
        critic.engine,
        retriever,
    )


def _serve_round(searching: bool, batch: list[Request]) -> Steps[list[RequestResult]]:
    searches = [request for request in batch if isinstance(request, Retrieve)]
    if searches and not searching:
        raise UserError(
            "no index, and a pair that retrieves brings no passage of its own"
            f" (its search: {searches[0].query[:60]!r}); give --index, or leave such pairs out"
        )
    results = yield from serve_in_order(batch)
    failures = [
        result.reason
        for request, result in zip(batch, results, strict=True)
        if isinstance(request, Retrieve) and isinstance(result, Failed)
    ]
    if len(failures) == len(searches) and len(set(searches)) > 1:
        raise UserError(f"every search failed: {failures[0]}")
    return results


def augment_pairs(
    source: PairSource,
    out: str | Path,
    execute: ExecuteShards,
    options: AugmentOptions,
    *,
    inputs: Mapping[str, Any] | None = None,
    shard: int = SHARD,
) -> JsonObject:
    """Write reflection tokens into all pairs of a source, and return the manifest.

    Args:
        source: the pairs.
        out: directory, made if missing; may hold an interrupted run of the same settings, which continues.
        execute: `augment_locally(..)` or `augment_on_ray(..)`.
        options: how; part of the run's identity.
        inputs: names and fingerprints of the critic and the index, part of the identity too.
        shard: pairs a shard, part of the identity.

    Raises:
        UserError: a pair cannot be read, the directory holds another run, or the critic or the index failed.
    """
    check_int("shard", shard)
    path = Path(out)
    identity = {
        "format": FORMAT,
        "source": source.path.name,
        "options": asdict(options),
        "inputs": dict(inputs or {}),
    }
    identity = json.loads(json.dumps({**identity, "shard": shard}))
    with locked_directory(path):
        finished = path / "manifest.json"
        log = path / "shards.jsonl"
        manifest = (
            _finished(finished, identity, source, shard) if finished.exists() else None
        )
        if manifest is None:
            manifest = _work(source, log, identity, execute, shard)
            write_json(finished, manifest)
        log.unlink(missing_ok=True)
    return manifest


def _finished(
    file: Path, identity: Mapping[str, Any], source: PairSource, size: int
) -> JsonObject:
    """Return the manifest of a finished run; refuse one of other settings or pairs."""
    try:
        manifest = dict(read_json(file, nan=True))
    except (UserError, ValueError, TypeError) as error:
        raise UserError(
            f"{file} is damaged ({error}); remove it, or choose another directory"
        ) from error
    check_same_run(file.parent, {key: manifest.get(key) for key in identity}, identity)
    pairs = _combined(shard.fingerprint for shard in sharded(source, size))
    if manifest.get("pairs") != pairs:
        raise UserError(
            f"{file.parent} holds the finished rows of other pairs; choose another directory"
        )
    return manifest


def _work(
    source: PairSource,
    path: Path,
    identity: Mapping[str, Any],
    execute: ExecuteShards,
    size: int,
) -> JsonObject:
    """Make every shard that is missing in the log, write the files, and return the manifest."""
    total = sum(1 for _ in source)  # every row is checked before anything is spent
    if not total:
        raise UserError(f"{source.path.name} holds no pairs")
    # of the finished shards by number, in the order of the log
    fingerprints: dict[int, str] = {}

    def take(record: Mapping[str, Any]) -> None:
        fingerprints[int(record["shard"])] = str(record["fingerprint"])

    with RunLog(path, identity, take) as log:
        number = 0
        # not part of the speed that the ETA goes by
        done = min(total, size * len(fingerprints))

        def missing() -> Iterator[PairShard]:
            nonlocal number
            for shard in sharded(source, size):
                number = shard.number + 1
                fingerprint = fingerprints.get(shard.number)
                if fingerprint is None:
                    yield shard
                elif fingerprint != shard.fingerprint:
                    raise UserError(
                        f"{path}: these are not the pairs this run began with;"
                        " restore them, or choose another directory"
                    )

        with Progress("augmenting", "pair", total, done) as bar:
            for shard, outcomes in execute(missing()):
                record = {
                    "shard": shard.number,
                    "fingerprint": shard.fingerprint,
                    "outcomes": outcomes,
                }
                log.append(record)
                take(record)
                bar.advance(len(shard.pairs))
        places = {shard: place for place, shard in enumerate(fingerprints)}
        order = [places[shard] for shard in range(number)]
        counts = _write_files(log, order, path.parent)
    return {
        **identity,
        "pairs": _combined(fingerprints[shard] for shard in range(number)),
        "counts": counts,
        "files": {name: sha256(path.with_name(name)) for name in _FILES},
        "versions": versions(("selfrag", "spacy", "torch", "transformers", "datasets")),
        "commit": commit(),
    }


def _write_files(log: RunLog, order: Sequence[int], out: Path) -> JsonObject:
    """Write the files of a run from the records of its log in this order, and return their counts."""

    def outcomes() -> Iterator[Outcome]:
        for place in order:
            yield from log.record(place)["outcomes"]

    for name in ("rows", "provenance"):
        parts = (item.get(name, ()) for item in outcomes())
        write_jsonl(out / f"{name}.jsonl", chain.from_iterable(parts))
    dropped = (item["dropped"] for item in outcomes() if "dropped" in item)
    write_jsonl(out / "dropped.jsonl", dropped)
    return _counted(outcomes())


def _counted(outcomes: Iterable[Outcome]) -> JsonObject:
    """Return counts of what became of pairs, in a fixed order."""
    totals: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    sources: dict[str, Counter[str]] = defaultdict(Counter)
    for item in outcomes:
        totals["items"] += 1
        if "dropped" in item:
            dropped[item["dropped"]["reason"]] += 1
            continue
        totals["pairs_with_rows"] += 1
        for row, provenance in zip(item["rows"], item["provenance"], strict=True):
            written = [part["token"] for part in row["target"] if "token" in part]
            tokens.update(written)
            totals["rows"] += 1
            totals["passages"] += sum("passage" in part for part in row["target"])
            of_source = sources[row["source"]]
            of_source["rows"] += 1
            of_source["with_retrieval"] += "[Retrieval]" in written
            for segment in provenance["segments"]:
                for candidate in segment.get("candidates", ()):
                    is_chosen = candidate["id"] == segment.get("chosen")
                    totals["gold_passages"] += is_chosen and candidate["gold"]
    return {
        "items": totals["items"],
        "pairs_with_rows": totals["pairs_with_rows"],
        "rows": totals["rows"],
        "dropped": dict(sorted(dropped.items())),
        "tokens": dict(sorted(tokens.items())),
        "passages": totals["passages"],
        "gold_passages": totals["gold_passages"],
        "sources": {name: dict(sources[name]) for name in sorted(sources)},
    }


def _combined(fingerprints: Iterable[str]) -> str:
    """Return the digest of all pairs, from the fingerprints of their shards in order."""
    return hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def augment_on_ray(
    open_critic: Callable[[], Critic],
    open_retriever: Callable[[], Retriever | None],
    options: AugmentOptions,
    actors: Actors,
) -> ExecuteShards:
    """Return what works on shards in Ray actors, on the cluster that `ray.init` connected to or on one started here.

    `open_critic` and `open_retriever` are called once in each worker, so they must be picklable.
    """
    require_ray()
    open_worker = partial(augment_in_actor, open_critic, open_retriever, options)
    return lambda shards: on_actors(shards, open_worker, actors)


def augment_in_actor(
    open_critic: Callable[[], Critic],
    open_retriever: Callable[[], Retriever | None],
    options: AugmentOptions,
) -> Callable[[PairShard], Iterable[tuple[PairShard, list[Outcome]]]]:
    """Return what works on a shard in an actor."""
    execute = augment_locally(open_critic(), open_retriever(), options)
    return lambda shard: execute(iter([shard]))


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Counts of a source: all its rows, the pairs that will be augmented, their sentences, most judgments, searches."""

    items: int
    pairs: int
    sentences: int
    judgments: int
    searches: int

    def __str__(self) -> str:
        return (
            f"{self.pairs} of {count_of(self.items, 'rows')} with {count_of(self.sentences, 'sentences')};"
            f" at most {count_of(self.judgments, 'judgments')} and {count_of(self.searches, 'searches')}"
        )


def count_source(
    source: PairSource, options: AugmentOptions, find: SentenceFinder
) -> SourceCounts:
    """Read the whole source once, and count what its most expensive run asks for."""
    items = pairs = sentences = judgments = searches = 0
    for item in source:
        items += 1
        if len(item.instruction) + len(item.output) > options.longest:
            continue
        count = len(segments(item.output, find(item.output), options.shortest))
        gold = 0 if options.gold == "off" else len(item.passages)
        searching = not (gold and options.gold == "only")
        passages = gold + searching * options.passages
        decided = count if options.first == "judged" and count > 1 else count - 1
        pairs += 1
        sentences += count
        # Retrieve and IsUse of the whole; IsRel and IsSup a passage
        judgments += 2 + decided + 2 * count * passages
        searches += searching * (count + (count > 1))
    return SourceCounts(items, pairs, sentences, judgments, searches)
