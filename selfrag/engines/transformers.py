"""`TransformersEngine`: the reference engine, and the one for machines without vLLM.

A step of the engine:

1. admit waiting requests in a wave (`TransformersEngine._admit`);
2. compute their prompts, what several share first (`RunningBatch.start`);
3. generate one token for every running request (`RunningBatch.advance`);
4. keep the keys and values of what finished for prompts that continue it (`PrefixCache`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfrag.common.errors import UserError
from selfrag.engines.base import EngineLimits, Ticket
from selfrag.engines.batching import (
    BASE,
    MIN_SHARED,
    BatchingEngine,
    PrefixCache,
    PrefixScope,
    RunningRequest,
    look_up,
    shared_prefixes,
)
from selfrag.engines.transformers_model import (
    CachedPrefix,
    KVCache,
    LoadedModel,
    load,
    padded_cache,
    row_of,
)
from selfrag.engines.transformers_model import TransformersConfig as TransformersConfig
from selfrag.reflection.requests import Failed, Generate, Generated, Internals
from selfrag.runtime.sessions import TicketResult


class TransformersEngine(BatchingEngine):
    """An `Engine` on a transformers model in this process."""

    def __init__(self, model: LoadedModel, config: TransformersConfig) -> None:
        super().__init__()
        self._model: LoadedModel | None = model
        if config.deterministic:
            config = replace(config, prefix_cache_mib=0)
        if config.deterministic or model.alone:
            config = replace(config, max_batch=1, speculate=0)
        self._config = config
        self.limits = EngineLimits(
            model.max_model_len,
            model.vocab_size,
            adapters=model.adapters,
            activated=frozenset(model.invocations),
            inspects=True,
        )
        self._prefixes: PrefixCache[CachedPrefix] = PrefixCache(
            config.prefix_cache_mib << 20
        )
        self._batches: dict[str | None, RunningBatch] = {}  # by adapter

    @classmethod
    def load(cls, config: TransformersConfig) -> TransformersEngine:
        """Load the model; an `EngineError` says in one line what is unusable."""
        return cls(load(config), config)

    def _queue(self, ticket: Ticket, request: Generate) -> str | None:
        name = request.adapter or ""
        invocations = self._live_model.invocations
        if name in invocations:
            from selfrag.engines.adapters import inactive_reason

            problem = inactive_reason(name, request.prompt_ids, invocations[name])
            if problem is not None:
                return problem
        return super()._queue(ticket, request)

    def _advance(self) -> list[TicketResult]:
        with torch.inference_mode():
            try:
                done = self._admit()
                for batch in self._batches.values():
                    done += batch.advance()
            except torch.OutOfMemoryError as error:
                raise MemoryError(str(error)) from error
        self._prefixes.trim()
        self._batches = {
            adapter: batch for adapter, batch in self._batches.items() if batch.rows
        }
        return done

    def _has_running(self) -> bool:
        return bool(self._batches)

    def _drop(self, tickets: Collection[Ticket] | None) -> None:
        if tickets is None:
            self._batches.clear()
        with torch.inference_mode():
            for batch in self._batches.values():
                batch.abort(tickets or ())

    def _free(self) -> None:
        self._model = None
        self._prefixes = PrefixCache(0)

    def _admit(self) -> list[TicketResult]:
        """Start waiting requests in a wave, those of each adapter together."""
        batch = self._config.max_batch
        room = batch - sum(len(batch.rows) for batch in self._batches.values())
        wave: dict[str | None, list[RunningRequest]] = {}
        for row in self._take(room, batch):
            wave.setdefault(row.request.adapter, []).append(row)
        done: list[TicketResult] = []
        for adapter, rows in wave.items():
            if adapter not in self._batches:
                self._batches[adapter] = RunningBatch(
                    self._live_model, adapter, self._prefixes, self._config
                )
            done += self._batches[adapter].start(rows)
        return done

    @property
    def _live_model(self) -> LoadedModel:
        self._check_open()
        assert self._model is not None  # noqa: S101 - only `_die` clears it
        return self._model


def draw(logprobs: Tensor, seed: int, position: int) -> Tensor:
    """Return an id at random from log-probabilities [vocabulary], the same for the same seed and position."""
    noise = np.random.default_rng((seed, position)).gumbel(size=len(logprobs))
    return (logprobs + torch.from_numpy(noise).to(logprobs)).argmax()


MOST_CHECKED = 64
"""Most tokens of a pass that checks drafts: beyond some tens, a pass of more tokens takes longer in proportion."""


@dataclass(frozen=True, slots=True)
class _PendingPrompt:
    """A prompt before its prefill."""

    position: int  # among the prompts of the call
    ids: tuple[int, ...]
    # keys and values of its first ids, None if none are cached
    prefix: CachedPrefix | None
    cached: int  # prompt tokens that are not computed for it

    @property
    def start(self) -> int:
        """Position of the first id that is computed."""
        return 0 if self.prefix is None else len(self.prefix)

    @property
    def size(self) -> int:
        """Number of ids that are computed."""
        return len(self.ids) - self.start


@dataclass(frozen=True, slots=True)
class PrefilledPrompt:
    """A prompt after its prefill."""

    position: int  # among the prompts of the call
    pieces: tuple[CachedPrefix, ...]  # its keys and values
    logits: Tensor  # what comes next, [vocabulary]
    cached: int  # prompt tokens that were not computed for it


class RunningBatch:
    """The running rows of one adapter."""

    def __init__(
        self,
        model: LoadedModel,
        adapter: str | None,
        prefixes: PrefixCache[CachedPrefix],
        config: TransformersConfig,
    ) -> None:
        self._model = model
        self._adapter = adapter
        self._prefixes = prefixes
        self._config = config
        self.rows: list[RunningRequest] = []
        self._cache = KVCache()

    def start(self, rows: Sequence[RunningRequest]) -> list[TicketResult]:
        """Compute prompts and first tokens; what is not finished by then joins the batch."""
        done: list[TicketResult] = []
        groups: dict[PrefixScope, list[RunningRequest]] = {}
        for row in rows:
            try:
                row.matcher = self._model.matcher(row.request)
            except UserError as error:  # a constraint nobody can follow is the fault of its request alone
                done.append((row.ticket, Failed(str(error))))
                continue
            row.scope = self._scope(row.request.prompt_ids)
            groups.setdefault(row.scope, []).append(row)
        for scope, members in groups.items():
            done += self._start(members, scope)
        return done

    def _start(
        self, rows: Sequence[RunningRequest], scope: PrefixScope
    ) -> list[TicketResult]:
        done: list[TicketResult] = []
        prompts = [row.request.prompt_ids for row in rows]
        computed = self._compute_base(prompts, scope.base_length)
        for prefilled in self._prefill(prompts, scope):
            chunk = [rows[prompt.position] for prompt in prefilled]
            for row, prompt in zip(chunk, prefilled, strict=True):
                row.cached = prompt.cached - computed.pop(
                    row.request.prompt_ids[: scope.base_length], 0
                )
                row.internals = self._inspect(row.request, prompt)
            results = self._choose(
                chunk, torch.stack([prompt.logits for prompt in prefilled])
            )
            joining = []
            for row, prompt, result in zip(chunk, prefilled, results, strict=True):
                if result is not None:
                    done.append((row.ticket, result))
                    self._keep(row, result, partial(CachedPrefix.joined, prompt.pieces))
                    continue
                joining.append(prompt.pieces)
                self.rows.append(row)
            self._cache.add(joining)
        return done

    def _inspect(self, request: Generate, prompt: PrefilledPrompt) -> Internals | None:
        """Compute the last ids of a prompt once more, alone, and return what the model does on them."""
        if not request.inspect:
            return None
        # the id before them predicts the first of them
        start = len(request.prompt_ids) - request.inspect - 1
        prefix = CachedPrefix.joined(prompt.pieces).part(0, start) if start else None
        return self._model.inspect(request.prompt_ids[start:], prefix, self._adapter)

    def _scope(self, prompt: tuple[int, ...]) -> PrefixScope:
        invocation = self._model.invocations.get(self._adapter or "")
        if invocation is None:
            return PrefixScope(self._adapter)
        from selfrag.engines.adapters import invocation_start

        return PrefixScope(self._adapter, invocation_start(prompt, invocation))

    def _compute_base(
        self, prompts: Sequence[tuple[int, ...]], length: int
    ) -> dict[tuple[int, ...], int]:
        """Cache the base model's keys and values of the first `length` ids of each prompt.

        Returns:
            How many tokens were computed for each beginning that was not cached.
        """
        missing: set[tuple[int, ...]] = set()
        for ids in prompts:
            beginning = ids[:length]
            if self._prefixes.longest(None, beginning)[1] < len(beginning):
                missing.add(beginning)
        beginnings = sorted(missing)
        computed: dict[tuple[int, ...], int] = {}
        if not beginnings:
            return computed
        for prefilled in self._prefill(beginnings, BASE):
            for prompt in prefilled:
                beginning = beginnings[prompt.position]
                self._prefixes.put(None, beginning, CachedPrefix.joined(prompt.pieces))
                computed[beginning] = len(beginning) - prompt.cached
        return computed

    def advance(self) -> list[TicketResult]:
        """Generate one more token for every row, or as many as its draft has right, and return what finished."""
        if not self.rows:
            return []
        drafts = self._drafts()
        width = 1 + max(map(len, drafts))
        before = torch.tensor(self._cache.lengths).unsqueeze(1)  # [rows, 1]
        positions = before + torch.arange(width)  # [rows, width]
        cache = self._cache.extend(width)
        columns = torch.arange(self._cache.used)
        counts = torch.tensor([[1 + len(draft)] for draft in drafts])  # of new tokens
        padded = [draft + [0] * (width - 1 - len(draft)) for draft in drafts]
        ids = torch.tensor(
            [[row.ids[-1], *ids] for row, ids in zip(self.rows, padded, strict=True)]
        )
        start = self._cache.used - width
        mask = (columns >= start - before) & (columns < start + counts)
        positions = positions.clamp(max=self._model.max_model_len - 1)  # of padding
        logits = self._run(ids, mask, positions, cache, self._adapter, width)
        results = self._accept(drafts, logits)
        done: list[TicketResult] = []
        for index in reversed(range(len(results))):
            result = results[index]
            if result is not None:
                done.append((self.rows[index].ticket, result))
                self._remove(index, result)
        return done[::-1]

    def _drafts(self) -> list[list[int]]:
        """Return for each row the ids that its next pass checks, none where its text does not repeat itself."""
        # Many rows at once use the processor well without drafts.
        most = min(self._config.speculate, MOST_CHECKED // len(self.rows) - 1)
        if most < 1:
            return [[] for _ in self.rows]
        drafts = []
        for row in self.rows:
            request = row.request
            room = min(
                request.max_tokens - len(row.ids),
                self._model.max_model_len - len(request.prompt_ids) - len(row.ids),
            )
            is_free = request.allowed_ids is None and row.matcher is None
            length = min(most, room - 1) if is_free else 0
            drafts.append(
                look_up((*request.prompt_ids, *row.ids), length) if length > 0 else []
            )
        return drafts

    def _accept(
        self, drafts: Sequence[Sequence[int]], logits: Tensor
    ) -> list[Generated | Failed | None]:
        """Append to every row the tokens of logits [rows, width, vocabulary], up to its first one beside the draft."""
        results: list[Generated | Failed | None] = [None] * len(self.rows)
        kept = [0] * len(self.rows)
        going = list(range(len(self.rows)))  # rows whose tokens are those of the draft
        for column in range(logits.shape[1]):
            rows = [self.rows[index] for index in going]
            logits_of_column = logits[:, column]
            if len(rows) < len(self.rows):
                logits_of_column = logits_of_column[going]  # a copy
            chosen = self._choose(rows, logits_of_column)
            right = []
            for index, result in zip(going, chosen, strict=True):
                results[index] = result
                kept[index] += 1
                expected = drafts[index][column : column + 1]
                if result is None and expected == self.rows[index].ids[-1:]:
                    right.append(index)
            going = right
            if not going:
                break
        self._cache.keep(kept)
        return results

    def abort(self, tickets: Collection[Ticket]) -> None:
        """Drop rows."""
        for index in reversed(range(len(self.rows))):
            if self.rows[index].ticket in tickets:
                self._remove(index, None)

    def _remove(self, index: int, result: Generated | Failed | None) -> None:
        self._keep(
            self.rows[index],
            result,
            lambda: CachedPrefix.joined([self._cache.row(index)]),
        )
        self._cache.drop(index)
        last = self.rows.pop()
        if index < len(self.rows):
            self.rows[index] = last

    def _run(
        self,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: object,
        adapter: str | None,
        count: int = 1,
    ) -> Tensor:
        device = self._model.device
        return self._model.last_logits(
            ids.to(device),
            mask.to(device, torch.long),
            positions.to(device),
            cache,
            adapter,
            count,
        )

    # Starting: what is shared first, then the rest of each prompt.

    def _prefill(
        self, prompts: Sequence[tuple[int, ...]], scope: PrefixScope
    ) -> Iterator[list[PrefilledPrompt]]:
        """Compute prompts, and yield them in chunks, each prompt once."""
        # 1. Compute what several prompts share, and charge one of them for it.
        known = [self._longest(prompt, scope)[1] for prompt in prompts]
        shared = shared_prefixes(prompts, known, MIN_SHARED)
        charges = [0] * len(prompts)
        if shared:
            for chunk in self._prefill([prefix.ids for prefix in shared], scope):
                for computed in chunk:
                    beginning, owner = shared[computed.position]
                    charges[owner] += len(beginning) - computed.cached
                    self._prefixes.put(
                        scope.key, beginning, CachedPrefix.joined(computed.pieces)
                    )
        # 2. Compute the rest of each prompt.
        pending = []
        for position, ids in enumerate(prompts):
            prefix, length = self._longest(ids, scope)
            if prefix is not None:
                prefix = prefix.part(0, length)
            pending.append(
                _PendingPrompt(position, ids, prefix, length - charges[position])
            )
        for members in self._chunks(pending):
            yield self._prefill_chunk(members, scope)

    def _longest(
        self, prompt: tuple[int, ...], scope: PrefixScope
    ) -> tuple[CachedPrefix | None, int]:
        """Return the longest cached prefix of a prompt, and its length, from its scope or the base model's.

        The last id of a prompt is always computed: its logits are the first result.
        """
        in_scope = self._prefixes.longest(scope.key, prompt[:-1])
        if in_scope[1] >= scope.base_length:
            return in_scope
        of_base = self._prefixes.longest(None, prompt[: scope.base_length])
        return of_base if of_base[1] > in_scope[1] else in_scope

    def _chunks(
        self, pending: Sequence[_PendingPrompt]
    ) -> Iterator[list[_PendingPrompt]]:
        """Yield groups of similar size, each within the token budget once padded."""
        chunk: list[_PendingPrompt] = []
        for prompt in sorted(pending, key=lambda prompt: prompt.size):
            if (
                chunk
                and prompt.size * (len(chunk) + 1) > self._config.max_prefill_tokens
            ):
                yield chunk
                chunk = []
            chunk.append(prompt)
        if chunk:
            yield chunk

    def _prefill_chunk(
        self, chunk: Sequence[_PendingPrompt], scope: PrefixScope
    ) -> list[PrefilledPrompt]:
        """Run the model once over the ids of a chunk that are not cached."""
        cache, width = padded_cache([prompt.prefix for prompt in chunk])
        new = max(prompt.size for prompt in chunk)
        ids = torch.zeros((len(chunk), new), dtype=torch.long)
        positions = torch.zeros((len(chunk), new), dtype=torch.long)
        mask = torch.zeros((len(chunk), width + new), dtype=torch.long)
        # cached and new columns are both right-aligned
        for row, prompt in enumerate(chunk):
            ids[row, new - prompt.size :] = torch.tensor(prompt.ids[prompt.start :])
            positions[row, new - prompt.size :] = torch.arange(
                prompt.start, len(prompt.ids)
            )
            mask[row, width - prompt.start : width] = 1
            mask[row, width + new - prompt.size :] = 1
        logits = self._run(ids, mask, positions, cache, scope.adapter)[:, -1]
        prefilled = []
        for row, prompt in enumerate(chunk):
            pieces: tuple[CachedPrefix, ...] = (
                row_of(cache.layers, row, width + new - prompt.size, width + new),
            )
            if prompt.prefix is not None:
                pieces = (prompt.prefix, *pieces)
            prefilled.append(
                PrefilledPrompt(prompt.position, pieces, logits[row], prompt.cached)
            )
        return prefilled

    # Choosing: one token a row from its logits.

    def _choose(
        self, rows: Sequence[RunningRequest], logits: Tensor
    ) -> list[Generated | Failed | None]:
        """Append the next token to every row; return the result of each row that it ended, else None.

        Args:
            rows: in the order of the logits.
            logits: [rows, vocabulary].
        """
        for index, row in enumerate(rows):
            if row.matcher is not None:
                logits[index] = row.matcher.masked(logits[index])
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logprobs.argmax(dim=-1)
        for index, row in enumerate(rows):
            if row.request.allowed_ids is not None:
                allowed = torch.tensor(row.request.allowed_ids, device=logits.device)
                chosen[index] = allowed[logprobs[index, allowed].argmax()]
            elif row.matcher is not None:
                row.stuck = not row.matcher.accept(int(chosen[index]))
            elif row.request.seed is not None:
                chosen[index] = draw(logprobs[index], row.request.seed, len(row.ids))
        values = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1).tolist()
        watched = self._watched(rows, logprobs)
        for index, (row, token_id) in enumerate(
            zip(rows, chosen.tolist(), strict=True)
        ):
            row.ids.append(token_id)
            row.logprobs.append(values[index])
            row.watched.append(watched[index])
        return [row.end(self._model.eos_ids, self._model.max_model_len) for row in rows]

    def _watched(
        self, rows: Sequence[RunningRequest], logprobs: Tensor
    ) -> dict[int, NDArray[np.float32]]:
        """Return the log-probabilities of the watched ids of each row, by its index; one copy for equal ids."""
        members: dict[tuple[int, ...], list[int]] = {}
        for index, row in enumerate(rows):
            members.setdefault(row.request.watch_ids, []).append(index)
        watched: dict[int, NDArray[np.float32]] = {}
        for watch_ids, indices in members.items():
            columns = torch.tensor(watch_ids, dtype=torch.long, device=logprobs.device)
            block = (
                logprobs[torch.tensor(indices, device=logprobs.device)][:, columns]
                .cpu()
                .numpy()
            )
            watched.update(zip(indices, block, strict=True))
        return watched

    def _keep(
        self,
        row: RunningRequest,
        result: Generated | Failed | None,
        copy: Callable[[], CachedPrefix],
    ) -> None:
        """Keep a finished sequence in the cache for whatever continues it."""
        if not isinstance(result, Generated):
            return
        ids = row.computed
        if row.is_worth_keeping(self._prefixes.longest(row.scope.key, ids)[1]):
            self._prefixes.put(row.scope.key, ids, copy())
