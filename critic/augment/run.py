"""A whole run: pairs in, a directory of rows out. Killed at any moment and started again it ends with the same bytes.

Work goes shard by shard. Whatever works on a shard (this process, another machine) gives the same text for it. Each
finished shard is a file below `OUT/shards`, written in one step; when all are there they become `rows.jsonl`,
`provenance.jsonl`, `dropped.jsonl` and, last, `manifest.json`.

The cost of a run is told before it is paid for. All its figures are upper bounds: every pair retrieves, every sentence
and passage is judged, and nothing is shared. An engine that keeps prefixes computes about half of it, since IsRel and
IsSup of a passage begin alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeAlias, cast

from critic.augment.algorithm import Augmented, AugmentOptions, Steps, augment, segments
from critic.augment.rows import outcome
from critic.cases import Case
from critic.judging import Critic
from critic.pairs import Dropped, Pair, PairSource
from retrieval.passage import Passage, Retriever
from retrieval.sentences import SentenceFinder, Span, sentence_finder
from selfrag.cluster import ERROR, Actors, on_actors, require_ray
from selfrag.common.atomic import locked_directory, write_json, write_text, writing
from selfrag.common.checks import check_int
from selfrag.common.errors import UserError
from selfrag.common.progress import Progress
from selfrag.common.provenance import commit, sha256, versions
from selfrag.common.reading import parse_json, read_json
from selfrag.common.runs import check_same_run
from selfrag.reflection.requests import Failed, Retrieve, gather
from selfrag.reflection.requests import Steps as DriverSteps
from selfrag.runtime import finish

FORMAT = "selfrag-dgen-1"
SHARD = 128
"""Items of a shard: enough to fill batches, few enough that a kill costs little."""

_FILES = ("rows", "provenance", "dropped")


@dataclass(frozen=True, slots=True)
class PairShard:
    """Some items in the order of the source: pairs, and rows that are none."""

    number: int
    items: tuple[Pair | Dropped, ...]

    @property
    def fingerprint(self) -> str:
        """Changes with any of its items."""
        lines = [_line(item.as_dict() if isinstance(item, Pair) else [item.id, item.detail]) for item in self.items]
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


ExecuteShards: TypeAlias = Callable[[Iterator[PairShard]], Iterable[tuple[PairShard, str]]]
"""Works on shards as they come and gives each back with its text, in any order."""


def sharded(items: Iterable[Pair | Dropped], size: int) -> Iterator[PairShard]:
    """Shards of `size` items; the last one may be smaller."""
    rest = iter(items)
    for number in count():
        chunk = tuple(islice(rest, size))
        if not chunk:
            return
        yield PairShard(number, chunk)


def augment_locally(critic: Critic, retriever: Retriever | None, options: AugmentOptions) -> ExecuteShards:
    """Work on one shard after the other in this process."""
    find = sentence_finder(options.sentences)

    def execute(shards: Iterator[PairShard]) -> Iterator[tuple[PairShard, str]]:
        for shard in shards:
            yield shard, augment_shard(shard, critic, retriever, options, find)

    return execute


def augment_shard(
    shard: PairShard, critic: Critic, retriever: Retriever | None, options: AugmentOptions, find: SentenceFinder
) -> str:
    """The file of a shard: a line on the shard, then one for each of its items with its rows or why there is none."""
    pairs = [item for item in shard.items if isinstance(item, Pair)]
    results = iter(drive([augment(pair, options, find) for pair in pairs], critic, retriever))
    head = _line({"shard": shard.number, "items": len(shard.items), "fingerprint": shard.fingerprint})
    ends = (next(results) if isinstance(item, Pair) else item for item in shard.items)
    return head + "".join(_line(outcome(end, options)) for end in ends)


def drive(
    augmentations: Sequence[Steps[Augmented | Dropped]], critic: Critic, retriever: Retriever | None
) -> list[Augmented | Dropped]:
    """Run augmentations to their end: in each round one call of the critic and one search for all that wait.

    Rounds are lockstep on purpose. A batch then depends on the pairs alone, not on which answer came first. A critic
    whose numbers depend on the batch gives the same labels after any interruption. A search that fails alone drops its
    pair; a `UserError` ends the run if the critic failed, or every search of a round of several did.
    """
    steps: Any = gather(cast("Any", augmentations), partial(_round, critic, retriever is not None))
    return cast("list[Augmented | Dropped]", finish(steps, critic.engine, retriever))


def _round(critic: Critic, searching: bool, batch: list[Any]) -> DriverSteps[list[Any]]:
    """Answer the cases and searches of a round, each once, side by side."""
    requests = list(dict.fromkeys(batch))
    cases = [request for request in requests if isinstance(request, Case)]
    searches = [request for request in requests if isinstance(request, Retrieve)]
    steps: list[DriverSteps[list[Any]]] = [critic.steps(cases), _search(searching, searches)]
    judgments, passages = yield from gather(steps)
    results = dict(zip((*cases, *searches), (*judgments, *passages), strict=True))
    return [results[request] for request in batch]


def _search(searching: bool, requests: list[Retrieve]) -> DriverSteps[list[Any]]:
    if not requests:
        return []
    if not searching:
        raise UserError(
            "no index, and a pair that retrieves brings no passage of its own"
            f" (its search: {requests[0].query[:60]!r}); give --index, or leave such pairs out"
        )
    results = yield list(requests)
    failed = [result for result in results if isinstance(result, Failed)]
    if len(failed) == len(requests) > 1:
        raise UserError(f"every search failed: {failed[0].reason}")
    return results


def augment_pairs(
    source: PairSource,
    out: str | Path,
    execute: ExecuteShards,
    options: AugmentOptions,
    *,
    inputs: Mapping[str, Any] | None = None,
    shard: int = SHARD,
) -> dict[str, Any]:
    """Write reflection tokens into all pairs of a source.

    Args:
        source: the pairs.
        out: directory, made if missing; may hold an interrupted run of the same settings, which continues.
        execute: `augment_locally(..)` or `augment_on_ray(..)`.
        options: how; part of the run's identity.
        inputs: names and fingerprints of the critic and the index, part of the identity too.
        shard: items a shard, part of the identity.

    Returns:
        The manifest.
    """
    check_int("shard", shard)
    path = Path(out)
    identity = {"format": FORMAT, "source": source.name, "options": asdict(options), "inputs": dict(inputs or {})}
    identity = json.loads(json.dumps({**identity, "shard": shard}))
    with locked_directory(path):
        shards = path / "shards"
        if (path / "manifest.json").exists():
            found = _same(path / "manifest.json", identity)
            if source.total() is not None and found["pairs"] != _combined(
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
        number = _work(source, shards, execute, shard, total)
        manifest = _merge(shards, number, path, identity)
        shutil.rmtree(shards, ignore_errors=True)
    return manifest


def _work(source: PairSource, shards: Path, execute: ExecuteShards, size: int, total: int | None) -> int:
    """Make every shard file that is missing; the number of shards."""
    number = 0
    done = size * sum(1 for _ in shards.glob("[0-9]*.jsonl"))  # not part of the speed that the ETA goes by
    done = done if total is None else min(done, total)
    with Progress("augmenting", "pair", total, done) as bar:

        def missing() -> Iterator[PairShard]:
            nonlocal number
            for shard in sharded(source, size):
                number = shard.number + 1
                if not _finished(_file(shards, shard.number), shard):
                    yield shard

        for shard, text in execute(missing()):
            write_text(_file(shards, shard.number), text)
            bar.advance(len(shard.items))
    return number


def _finished(file: Path, shard: PairShard) -> bool:
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
    try:
        found = dict(read_json(file, nan=True))
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}); remove it, or choose another directory") from error
    check_same_run(file.parent, {key: found.get(key) for key in identity}, identity)
    return found


def _merge(shards: Path, number: int, out: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Make the final files from the shards; done again, it writes the same. The manifest comes last."""
    counts = _Counts()
    heads: list[str] = []
    drafts = {name: shards / f"{name}.draft" for name in _FILES}
    with writing(out):
        with ExitStack() as stack:
            streams = {name: stack.enter_context(drafts[name].open("w", encoding="utf-8")) for name in _FILES}
            for shard in range(number):
                with _file(shards, shard).open(encoding="utf-8") as lines:
                    heads.append(json.loads(next(lines))["fingerprint"])
                    for item in map(json.loads, lines):
                        counts.add(item)
                        dropped = [item["dropped"]] if "dropped" in item else []
                        for name, records in {**item, "dropped": dropped}.items():
                            streams[name].writelines(map(_line, records))
            for stream in streams.values():
                stream.flush()
                os.fsync(stream.fileno())
        for name in _FILES:
            drafts[name].replace(out / f"{name}.jsonl")
    manifest = {
        **identity,
        "pairs": _combined(heads),
        "counts": counts.as_dict(),
        "files": {f"{name}.jsonl": sha256(out / f"{name}.jsonl") for name in _FILES},
        "versions": versions(("selfrag", "spacy", "torch", "transformers", "datasets")),
        "commit": commit(),
    }
    draft = shards / "manifest.json"  # so that a kill leaves nothing beside the final files
    write_json(draft, manifest)
    with writing(out):
        draft.replace(out / draft.name)
    return manifest


class _Counts:
    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.sources: dict[str, dict[str, int]] = defaultdict(lambda: {"rows": 0, "with_retrieval": 0})

    def add(self, item: Mapping[str, Any]) -> None:
        self.totals["items"] += 1
        if "dropped" in item:
            self.dropped[item["dropped"]["reason"]] += 1
            return
        self.totals["pairs_with_rows"] += 1
        for row, provenance in zip(item["rows"], item["provenance"], strict=True):
            tokens = [part["token"] for part in row["target"] if "token" in part]
            self.tokens.update(tokens)
            self.totals["rows"] += 1
            self.totals["passages"] += sum("passage" in part for part in row["target"])
            for segment in provenance["segments"]:
                gold = {one["id"] for one in segment.get("candidates", ()) if one["gold"]}
                self.totals["gold_passages"] += segment.get("chosen") in gold
            self.sources[row["source"]]["rows"] += 1
            self.sources[row["source"]]["with_retrieval"] += "[Retrieval]" in tokens

    def as_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order."""
        return {
            **{name: self.totals[name] for name in ("items", "pairs_with_rows", "rows")},
            "dropped": dict(sorted(self.dropped.items())),
            "tokens": dict(sorted(self.tokens.items())),
            **{name: self.totals[name] for name in ("passages", "gold_passages")},
            "sources": dict(sorted(self.sources.items())),
        }


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _file(shards: Path, number: int) -> Path:
    return shards / f"{number:08d}.jsonl"


def _combined(fingerprints: Iterable[str]) -> str:
    """Of all pairs, from the fingerprints of their shards in order."""
    return hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def augment_on_ray(
    open_critic: Callable[[], Critic],
    open_retriever: Callable[[], Retriever | None],
    options: AugmentOptions,
    actors: Actors,
) -> ExecuteShards:
    """Work on shards in Ray actors, of the cluster that `ray.init` connected to, or of one that starts here.

    `open_critic` and `open_retriever` are called once in each worker, so they must be picklable.
    """
    require_ray()

    def execute(shards: Iterator[PairShard]) -> Iterator[tuple[PairShard, str]]:
        sent: dict[int, PairShard] = {}

        def packed() -> Iterator[dict[str, Any]]:
            for shard in shards:
                sent[shard.number] = shard
                yield {"shard": shard.number, "items": pickle.dumps(shard.items)}

        for done in on_actors(packed(), ShardWorker, (open_critic, open_retriever, options), actors):
            shard = sent.pop(done["shard"])
            if not done[ERROR]:
                yield shard, done["text"]

    return execute


class ShardWorker:
    """Lives in an actor. What it cannot open is reported with a shard, so that it reaches the user as a line."""

    def __init__(
        self,
        open_critic: Callable[[], Critic],
        open_retriever: Callable[[], Retriever | None],
        options: AugmentOptions,
    ) -> None:
        self._options, self._error = options, ""
        try:
            self._critic, self._retriever = open_critic(), open_retriever()
            self._find = sentence_finder(options.sentences)
        except UserError as error:
            self._error = str(error)

    def __call__(self, packed: dict[str, Any]) -> dict[str, Any]:
        """A packed shard to its text, or to an error."""
        text, error = "", self._error
        shard = PairShard(packed["shard"], pickle.loads(packed["items"]))  # noqa: S301 - from the process that asks
        try:
            if not error:
                text = augment_shard(shard, self._critic, self._retriever, self._options, self._find)
        except UserError as failure:
            error = str(failure)
        return {"shard": packed["shard"], "text": text, ERROR: error}


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
            f"{self.pairs} of {self.items} rows with {self.sentences} sentences;"
            f" at most {self.judgments} judgments and {self.searches} searches"
        )


def count_source(source: PairSource, options: AugmentOptions, find: SentenceFinder) -> SourceCounts:
    """Read the whole source once and count."""
    items = pairs = sentences = judgments = searches = 0
    for item in source:
        items += 1
        if isinstance(item, Pair) and len(item.instruction) + len(item.output) <= options.longest:
            spans = segments(item.output, find(item.output), options.shortest)
            pairs += 1
            sentences += len(spans)
            judgments += sum(times for _, times in cases(item, spans, options, Passage("unknown", "")))
            if not (item.passages and options.gold == "only"):
                searches += len(spans) + (len(spans) > 1)
    return SourceCounts(items, pairs, sentences, judgments, searches)


def cases(pair: Pair, spans: list[Span], options: AugmentOptions, unknown: Passage) -> Iterator[tuple[Case, int]]:
    """The cases of a pair in the dearest run, and how often each is asked; `unknown` stands for retrieved passages."""
    gold = pair.passages if options.gold != "off" else ()
    searched = 0 if gold and options.gold == "only" else options.passages
    yield Case("IsUse", pair.instruction, output=pair.output), 1
    yield Case("Retrieve", pair.instruction, output=pair.output if options.initial == "output" else ""), 1
    for number, (start, end) in enumerate(spans):
        before, sentence = pair.output[:start].strip(), pair.output[start:end].strip()
        if number or (options.first == "judged" and len(spans) > 1):
            yield Case("Retrieve", pair.instruction, before, sentence, gold[0] if gold else unknown), 1
        for passage, times in [*((one, 1) for one in gold), (unknown, searched)]:
            if times:
                yield Case("IsRel", pair.instruction, before, evidence=passage), times
                yield Case("IsSup", pair.instruction, before, sentence, passage), times
