"""`OnnxEngine`: Llama-like models on a CPU by ONNX Runtime, without torch and transformers.

A step starts waiting requests, each prompt alone behind what is cached of it, and then generates one token for every
running request in one pass.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selfrag.extensions.onnx.checkpoint import (
    DecoderFacts,
    WeightArray,
    read_facts,
)
from selfrag.extensions.onnx.graph import Numbers, write_graph
from selfrag.interface import (
    GRAPH,
    MIN_SHARED,
    BatchingEngine,
    EngineError,
    EngineLimits,
    Generate,
    Generated,
    PrefixCache,
    RunningRequest,
    TensorFiles,
    Ticket,
    TicketResult,
    cache_home,
    check_choice,
    check_int,
    fingerprint,
    first_line,
    open_session,
    publish,
    shared_prefixes,
    weight_files,
)

FORMAT = 3
"""Version of the graphs in the cache."""
ROOM = 64
"""Tokens by which the room of the running sequences grows."""


@dataclass(frozen=True, slots=True)
class OnnxConfig:
    """How to run a checkpoint under ONNX Runtime."""

    model: str  # directory of a checkpoint
    # number format of the matrices; int8 takes half the space, and its probabilities differ by up to .05
    dtype: Literal["float32", "int8"] = "float32"
    max_batch: int = 16  # sequences that run together
    # prompt and new tokens together; None is what the model was made for
    max_model_len: int | None = None
    max_prefill_tokens: int = 1024  # prompt tokens computed in one pass
    prefix_cache_mib: int = 512  # memory for keys and values of earlier prompts
    threads: int | None = None  # None is one for each core

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, ("float32", "int8"))
        check_int("max_batch", self.max_batch)
        check_int("max_prefill_tokens", self.max_prefill_tokens)
        check_int("prefix_cache_mib", self.prefix_cache_mib, 0)
        if self.max_model_len is not None:
            check_int("max_model_len", self.max_model_len, 2)
        if self.threads is not None:
            check_int("threads", self.threads)


def load_engine(model_dir: str, **options: Any) -> OnnxEngine:
    """Load a checkpoint; `options` are the fields of `OnnxConfig`.

    Raises:
        EngineError: an unknown option, or a model that cannot be run.
    """
    if options.pop("adapters", None):
        raise EngineError(
            "the onnx engine runs no adapters; merge them, or use --engine transformers"
        )
    try:
        config = OnnxConfig(model_dir, **options)
    except TypeError as error:
        known = ", ".join(OnnxConfig.__dataclass_fields__)
        raise EngineError(f"the onnx engine: {error}; its options: {known}") from error
    return OnnxEngine.load(config)


def converted(directory: Path, facts: DecoderFacts, numbers: Numbers) -> Path:
    """Return the folder of a checkpoint's graph in the cache, made on the first call."""
    sources = [directory / "config.json", *weight_files(directory)]
    name = f"onnx-{numbers}-{fingerprint(sources, FORMAT, numbers)}"

    def build(draft: Path) -> None:
        sys.stderr.write(f"converting {directory} for ONNX Runtime, once ..\n")
        with TensorFiles(directory) as weights:
            write_graph(facts, weights, draft, numbers)

    needs = 2 * sum(path.stat().st_size for path in sources)
    return publish(cache_home() / "models" / name, build, needs=needs)


_BYTES = {"float32": 4.0, "int8": 1.125}
"""Of a weight; in int8 the embedding stays in float32."""


def check_memory(directory: Path, numbers: Numbers) -> None:
    """Refuse a model whose weights this machine cannot hold.

    Raises:
        EngineError: it says how much is needed.
    """
    with TensorFiles(directory) as weights:
        count = sum(math.prod(weights.shape(name)) for name in weights)
    needed = count * _BYTES[numbers] / 1e9
    memory = _memory() / 1e9
    if needed > memory:
        smaller = " or --dtype int8" if numbers == "float32" else ""
        raise EngineError(
            f"{directory} takes {needed:.1f} GB in {numbers}, and this machine has {memory:.1f} GB; use a smaller model"
            f"{smaller}"
        )


def _memory() -> float:
    """Return the bytes of memory of this machine; infinity where they are not known."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # on Windows
        return math.inf


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """Keys and values of the first tokens of one sequence."""

    values: WeightArray  # [keys and values of each layer, heads, tokens, size]

    def __len__(self) -> int:
        return int(self.values.shape[2])

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return self.values.nbytes


class Sequences:
    """Keys and values of the running sequences: row i of each array is sequence i, its tokens from the left."""

    def __init__(self, facts: DecoderFacts) -> None:
        self._facts = facts
        self.arrays: list[WeightArray] = []
        self._reserve(1, ROOM)

    def _reserve(self, rows: int, room: int) -> None:
        facts = self._facts
        shape = (rows, facts.kv_heads, room, facts.head_size)
        old = self.arrays
        # Numbers behind a row's tokens are not read, but must be finite.
        self.arrays = [np.zeros(shape, np.float32) for _ in range(2 * facts.layers)]
        for source, target in zip(old, self.arrays, strict=False):
            target[: source.shape[0], :, : source.shape[2]] = source

    def make_room(self, rows: int, tokens: int) -> None:
        """Hold at least so many rows of so many tokens."""
        has_rows, _, has_room, _ = self.arrays[0].shape
        if rows > has_rows or tokens > has_room:
            room = -(-tokens // ROOM) * ROOM
            self._reserve(max(rows, has_rows), max(room, has_room))

    def put(self, row: int, prefix: StoredPrefix, length: int) -> None:
        """Copy the first `length` tokens of a prefix to the beginning of a row."""
        for array, values in zip(self.arrays, prefix.values, strict=True):
            array[row, :, :length] = values[:, :length]

    def copy(self, row: int, length: int) -> StoredPrefix:
        """Return a copy of the first tokens of a row."""
        return StoredPrefix(np.stack([array[row, :, :length] for array in self.arrays]))

    def move(self, source: int, target: int) -> None:
        """Copy a row over another."""
        for array in self.arrays:
            array[target] = array[source]


class Runner:
    """The model: passes over the arrays of `Sequences`."""

    def __init__(self, path: Path, facts: DecoderFacts, threads: int | None) -> None:
        self._facts = facts
        self._session = open_session(path, threads)

    def run(
        self,
        ids: NDArray[np.int64],
        before: Sequence[int],
        sequences: Sequence[WeightArray],
    ) -> WeightArray:
        """Return the log-probabilities behind the last token of each row, [rows, vocabulary].

        Args:
            ids: [rows, tokens].
            before: tokens that each row has already.
            sequences: keys and values by layer, [rows, heads, room, size]; the new ones are written into them.
        """
        rows, new = ids.shape
        last = np.array(before, np.int32) + np.int32(new - 1)
        pick = np.arange(1, rows + 1, dtype=np.int64) * new - 1
        logprobs = np.empty((rows, self._facts.vocab_size), np.float32)
        binding = self._session.io_binding()

        def bind(bound: Any, name: str, array: NDArray[Any]) -> None:
            bound(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

        inputs: dict[str, NDArray[Any]] = {
            "ids": np.ascontiguousarray(ids),
            "last": last,
            "total": np.array(last.max() + 1, np.int32),
            "pick": pick,
        }
        for name, array in inputs.items():
            bind(binding.bind_input, name, array)
        bind(binding.bind_output, "logprobs", logprobs)
        for index, array in enumerate(sequences):
            name = f"{('key', 'value')[index % 2]}_{index // 2}"
            bind(binding.bind_input, name, array)
            bind(binding.bind_output, f"new_{name}", array)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise EngineError(
                f"the model failed on {rows} x {new} tokens: {first_line(error)}"
            ) from error
        return logprobs


class OnnxEngine(BatchingEngine):
    """An `Engine` on ONNX Runtime in this process."""

    def __init__(self, runner: Runner, facts: DecoderFacts, config: OnnxConfig) -> None:
        super().__init__()
        self._runner: Runner | None = runner
        self._facts = facts
        self._config = config
        longest = min(config.max_model_len or facts.context, facts.context)
        self.limits = EngineLimits(longest, facts.vocab_size)
        self._prefixes: PrefixCache[StoredPrefix] = PrefixCache(
            config.prefix_cache_mib << 20
        )
        self._rows: list[RunningRequest] = []
        self._sequences = Sequences(facts)

    @classmethod
    def load(cls, config: OnnxConfig) -> OnnxEngine:
        """Load the model, after it is converted where this is its first time.

        Raises:
            EngineError: the model cannot be run.
        """
        directory = Path(config.model)
        facts = read_facts(directory)
        if (config.max_model_len or 0) > facts.context:
            raise EngineError(
                f"max_model_len={config.max_model_len}, but {directory} takes at most {facts.context} tokens"
            )
        check_memory(directory, config.dtype)
        folder = converted(directory, facts, config.dtype)
        return cls(Runner(folder / GRAPH, facts, config.threads), facts, config)

    def _queue(self, ticket: Ticket, request: Generate) -> str | None:
        if request.constraint is not None:
            return "the onnx engine follows no grammar; use --engine transformers"
        return super()._queue(ticket, request)

    def _has_running(self) -> bool:
        return bool(self._rows)

    def _drop(self, tickets: Collection[Ticket] | None) -> None:
        for index in reversed(range(len(self._rows))):
            if tickets is None or self._rows[index].ticket in tickets:
                self._remove(index)
        if tickets is None:
            self._sequences = Sequences(self._facts)

    def _free(self) -> None:
        self._runner = None
        self._prefixes = PrefixCache(0)

    def _advance(self) -> list[TicketResult]:
        room = self._config.max_batch - len(self._rows)
        starting = self._take(room, self._config.max_batch)
        self._compute_shared([row.request.prompt_ids for row in starting])
        done: list[TicketResult] = []
        for row in starting:
            done += self._start(row)
        done += self._continue()
        self._prefixes.trim()
        return done

    def _compute_shared(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Cache what several prompts begin with."""
        known = [self._prefixes.longest(None, ids[:-1])[1] for ids in prompts]
        for prefix in shared_prefixes(prompts, known, MIN_SHARED):
            self._compute(prefix.ids)
            spare = len(self._rows)
            stored = self._sequences.copy(spare, len(prefix.ids))
            self._prefixes.put(None, prefix.ids, stored)

    def _compute(self, ids: tuple[int, ...]) -> tuple[WeightArray, int]:
        """Compute a prompt into the first row that is free.

        Returns:
            The log-probabilities of the next token, [1, vocabulary], and how many ids were cached.
        """
        row = len(self._rows)
        self._sequences.make_room(row + 1, len(ids) + 1)
        prefix, cached = self._prefixes.longest(None, ids[:-1])
        if prefix is not None:
            self._sequences.put(row, prefix, cached)
        arrays = [array[row : row + 1] for array in self._sequences.arrays]
        start = cached
        logprobs = np.empty((0, 0), np.float32)
        while start < len(ids):
            part = ids[start : start + self._config.max_prefill_tokens]
            logprobs = self._live.run(np.array([part]), [start], arrays)
            start += len(part)
        return logprobs, cached

    def _start(self, row: RunningRequest) -> list[TicketResult]:
        """Compute a prompt and its first token; what is not finished by then runs on."""
        ids = row.request.prompt_ids
        logprobs, row.cached = self._compute(ids)
        choose([row], logprobs)
        index = len(self._rows)
        self._rows.append(row)
        return self._finished([index])

    def _continue(self) -> list[TicketResult]:
        """Generate one more token for every row."""
        if not self._rows:
            return []
        lengths = [len(row.computed) for row in self._rows]
        self._sequences.make_room(len(self._rows), max(lengths) + 1)
        count = len(self._rows)
        arrays = [array[:count] for array in self._sequences.arrays]
        ids = np.array([[row.ids[-1]] for row in self._rows])
        choose(self._rows, self._live.run(ids, lengths, arrays))
        return self._finished(range(count))

    def _finished(self, indices: Sequence[int]) -> list[TicketResult]:
        """Remove the rows that have ended, and return their results."""
        done: list[TicketResult] = []
        for index in reversed(indices):
            row = self._rows[index]
            result = row.end(self._facts.eos_ids, self.limits.max_model_len)
            if result is None:
                continue
            if isinstance(result, Generated):
                self._keep(index)
            self._remove(index)
            done.append((row.ticket, result))
        return done[::-1]

    def _keep(self, index: int) -> None:
        """Keep a finished sequence in the cache for whatever continues it."""
        row = self._rows[index]
        ids = row.computed
        if row.is_worth_keeping(self._prefixes.longest(None, ids)[1]):
            self._prefixes.put(None, ids, self._sequences.copy(index, len(ids)))

    def _remove(self, index: int) -> None:
        last = len(self._rows) - 1
        if index != last:
            self._sequences.move(last, index)
            self._rows[index] = self._rows[last]
        self._rows.pop()

    @property
    def _live(self) -> Runner:
        self._check_open()
        assert self._runner is not None  # noqa: S101 - only `_free` clears it
        return self._runner


def choose(rows: Sequence[RunningRequest], logprobs: WeightArray) -> None:
    """Append the most probable allowed id to every row; `logprobs` is [rows, vocabulary]."""
    best = logprobs.argmax(axis=1)
    for index, row in enumerate(rows):
        request = row.request
        chosen = int(best[index])
        if request.allowed_ids is not None:
            allowed = list(request.allowed_ids)
            chosen = allowed[int(logprobs[index, allowed].argmax())]
        row.ids.append(chosen)
        row.logprobs.append(float(logprobs[index, chosen]))
        row.watched.append(logprobs[index, list(request.watch_ids)])
