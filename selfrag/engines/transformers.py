"""`TransformersEngine`: the reference engine, and the one for machines without vLLM."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfrag.common.errors import EngineError, UserError
from selfrag.engines.base import BaseEngine, EngineLimits, Ticket, common_length
from selfrag.engines.transformers_model import CachedPrefix, KVCache, LoadedModel, Matcher, load, padded_cache, row_of
from selfrag.engines.transformers_model import TransformersConfig as TransformersConfig
from selfrag.reflection.requests import Failed, Finish, Generate, Generated, has_ended


@dataclass(frozen=True, slots=True)
class PrefixScope:
    """The weights that compute the keys and values of a prompt."""

    adapter: str | None = None  # name of the adapter, None for the base model
    start: int | None = None  # position from which an activated LoRA acts, None for adapters that act everywhere

    @property
    def key(self) -> str | None:
        """Prompts with equal keys may share the keys and values of a common prefix.

        Different starts give different keys: a token may precede the invocation in one and follow it in the other.
        """
        return self.adapter if self.start is None else f"{self.adapter}@{self.start}"

    @property
    def dormant_length(self) -> int:
        """Leading tokens that the base model computes."""
        return self.start or 0


BASE = PrefixScope()


class TransformersEngine(BaseEngine):
    """An `Engine` on a transformers model in this process."""

    def __init__(self, model: LoadedModel, config: TransformersConfig) -> None:
        super().__init__()
        self._model: LoadedModel | None = model
        if config.deterministic:
            config = replace(config, prefix_cache_mib=0)
        self._config = replace(config, max_batch=1) if model.alone or config.deterministic else config
        self.limits = EngineLimits(
            model.max_model_len, model.vocab_size, adapters=model.adapters, activated=frozenset(model.invocations)
        )
        self._prefixes = PrefixCache(config.prefix_cache_mib << 20)
        self._waiting: deque[tuple[Ticket, Generate]] = deque()
        self._batches: dict[str | None, RunningBatch] = {}
        self._started: set[Ticket] = set()

    @classmethod
    def load(cls, config: TransformersConfig) -> TransformersEngine:
        """Load the model; an `EngineError` says in one line what is unusable."""
        return cls(load(config), config)

    def _queue(self, ticket: Ticket, request: Generate) -> str | None:
        name, invocations = request.adapter or "", self._live_model.invocations
        problem = None
        if name in invocations:
            from selfrag.engines.adapters import inactive_reason

            problem = inactive_reason(name, request.prompt_ids, invocations[name])
        if problem is None:
            self._waiting.append((ticket, request))
        return problem

    def step(self) -> Sequence[tuple[Ticket, Generated | Failed]]:
        """Start what waits if there is room, generate one token for everything that runs, return what finished.

        Where the model fails, for example for lack of memory, the engine is dead.
        """
        self._check_open()
        done = self._work() if self._waiting or self._batches else []
        done = self._refusals() + done
        self._started.difference_update(ticket for ticket, result in done if has_ended(result))
        return done

    def _work(self) -> list[tuple[Ticket, Generated | Failed]]:
        try:
            with torch.inference_mode():
                done = self._admit()
                for batch in self._batches.values():
                    done += batch.advance()
        except EngineError as error:
            self._die(str(error))
            raise
        except (MemoryError, torch.OutOfMemoryError) as error:
            self._die(f"out of memory ({type(error).__name__}); lower max_batch or prefix_cache_mib")
            raise EngineError(str(self._gone)) from error
        except BaseException:
            self._interrupted()
            raise
        self._prefixes.trim()
        self._batches = {adapter: batch for adapter, batch in self._batches.items() if batch.rows}
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests; nothing comes back for them."""
        gone = frozenset(tickets)
        self._waiting = deque(item for item in self._waiting if item[0] not in gone)
        self._refused = self._refusals(gone)
        self._started -= gone
        with torch.inference_mode():
            for batch in self._batches.values():
                batch.abort(gone)

    def close(self) -> None:
        """Free the model. Further calls of `submit` and `step` raise `EngineError`."""
        if self._gone is None:
            self._die("the engine is closed")

    def _admit(self) -> list[tuple[Ticket, Generated | Failed]]:
        """Start waiting requests in waves: a pass over many prompts is cheaper than many passes over one."""
        room = self._config.max_batch - sum(len(batch.rows) for batch in self._batches.values())
        if not self._waiting or room < min(len(self._waiting), max(1, self._config.max_batch // 4)):
            return []
        wave: dict[str | None, list[RunningRequest]] = {}
        for _ in range(min(room, len(self._waiting))):
            ticket, request = self._waiting.popleft()
            wave.setdefault(request.adapter, []).append(RunningRequest(ticket, request))
            self._started.add(ticket)
        done: list[tuple[Ticket, Generated | Failed]] = []
        for adapter, rows in wave.items():
            new = RunningBatch(self._live_model, adapter, self._prefixes, self._config.max_prefill_tokens)
            done += self._batches.setdefault(adapter, new).start(rows)
        return done

    def _interrupted(self) -> None:
        """After Ctrl-C inside a step rows may be half written: they are lost, the engine is not."""
        self._refused += [(ticket, Failed("interrupted")) for ticket in sorted(self._started)]
        self._started.clear()
        self._batches.clear()

    @property
    def _live_model(self) -> LoadedModel:
        self._check_open()
        assert self._model is not None  # noqa: S101 - only `_die` clears it
        return self._model

    def _die(self, why: str) -> None:
        self._gone = " ".join(why.split())
        self._model = None
        self._waiting.clear()
        self._refused.clear()
        self._batches.clear()
        self._prefixes = PrefixCache(0)


class PrefixCache:
    """The keys and values of earlier prompts.

    Scopes share nothing; each adapter has its own, because an adapter changes every key and value.
    Nothing is evicted before `trim`, so whatever a step of an engine stores stays for the whole step.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget  # bytes that are kept after `trim`
        # Scope, ids, keys and values, and their bytes, summed once; the least recently used first.
        self._entries: list[tuple[str | None, NDArray[np.int64], CachedPrefix, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Memory of everything kept."""
        return sum(size for *_, size in self._entries)

    def longest(self, scope: str | None, tokens: Sequence[int]) -> tuple[CachedPrefix | None, int]:
        """The entry that shares most leading ids with `tokens`, and how many. (None, 0) if none shares any."""
        wanted = np.asarray(tokens, dtype=np.int64)
        shared = [common_length(one, wanted) if own == scope else 0 for own, one, *_ in self._entries]
        length = max(shared, default=0)
        if not length:
            return None, 0
        self._entries.append(self._entries.pop(shared.index(length)))
        return self._entries[-1][2], length

    def put(self, scope: str | None, tokens: Sequence[int], prefix: CachedPrefix) -> None:
        """Keep what was computed for `tokens`; entries that `tokens` continues say nothing more and are dropped."""
        new = np.asarray(tokens, dtype=np.int64)
        self._entries = [one for one in self._entries if one[0] != scope or common_length(one[1], new) < len(one[1])]
        self._entries.append((scope, new, prefix, prefix.nbytes))

    def trim(self) -> None:
        """Forget the least recently used entries beyond the budget."""
        excess = self.nbytes - self._budget
        while excess > 0:
            excess -= self._entries.pop(0)[3]


def shared_prefixes(
    prompts: Sequence[tuple[int, ...]], known: Sequence[int], minimum: int
) -> list[tuple[tuple[int, ...], int]]:
    """Prefixes that are worth a computation of their own, at most one for each prompt, shorter than it.

    A computation pays for at least `minimum` ids that are not among the leading ones `known` of a prompt. With each
    prefix comes the position of the prompt that is charged for it; the others get it for free.
    """
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    # overlap[i]: shared by sorted neighbours i - 1 and i; nothing is shared over the two ends.
    overlap = [0]
    for left, right in pairwise(order):
        shorter = min(len(prompts[left]), len(prompts[right]))
        overlap.append(min(common_length(prompts[left], prompts[right]), shorter - 1))
    overlap.append(0)
    best = [max(pair) for pair in pairwise(overlap)]
    found = []
    start = 0
    for i in range(1, len(order) + 1):
        if i < len(order) and overlap[i] + minimum > max(best[i - 1], best[i]):
            continue
        if i - start > 1:
            length = min(overlap[start + 1 : i])
            members = order[start:i]
            if length - known[members[0]] >= minimum:
                found.append((prompts[members[0]][:length], min(members)))
        start = i
    return found


MIN_SHARED = 16
"""Fewest tokens for which prompts get a pass of their own for what they share."""


@dataclass(slots=True)
class RunningRequest:
    """One request while it runs."""

    ticket: Ticket
    request: Generate
    scope: PrefixScope = BASE
    matcher: Matcher | None = None
    stuck: bool = False
    cached: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    watched: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def computed(self) -> tuple[int, ...]:
        """Ids whose keys and values exist: the newest id has not been through the model."""
        return (*self.request.prompt_ids, *self.ids[:-1])

    def result(self, finish: Finish) -> Generated:
        """What has been generated, as a result."""
        return Generated(tuple(self.ids), tuple(self.logprobs), np.stack(self.watched), finish, self.cached)


@dataclass(frozen=True, slots=True)
class PrefilledPrompt:
    """A prompt after its prefill."""

    pieces: tuple[CachedPrefix, ...]  # its keys and values
    logits: Tensor  # what comes next, [vocabulary]
    cached: int  # prompt tokens that were not computed for it


class RunningBatch:
    """The running rows of one adapter."""

    def __init__(self, model: LoadedModel, adapter: str | None, prefixes: PrefixCache, max_prefill_tokens: int) -> None:
        self._model = model
        self._adapter = adapter
        self._prefixes = prefixes
        self._max_prefill_tokens = max_prefill_tokens
        self.rows: list[RunningRequest] = []
        self._slab = KVCache()

    def start(self, rows: Sequence[RunningRequest]) -> list[tuple[Ticket, Generated | Failed]]:
        """Compute prompts and first tokens; what is not finished by then joins the batch."""
        done: list[tuple[Ticket, Generated | Failed]] = []
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

    def _start(self, rows: Sequence[RunningRequest], scope: PrefixScope) -> list[tuple[Ticket, Generated | Failed]]:
        prompts = [row.request.prompt_ids for row in rows]
        done: list[tuple[Ticket, Generated | Failed]] = []
        fresh = self._compute_base(prompt[: scope.dormant_length] for prompt in prompts)
        for indices, started in self._prefill(prompts, scope):
            chunk = [rows[i] for i in indices]
            for row, start in zip(chunk, started, strict=True):
                row.cached = start.cached - fresh.pop(row.request.prompt_ids[: scope.dormant_length], 0)
            ends = self._choose(chunk, torch.stack([start.logits for start in started]))
            joining = []
            for row, start, end in zip(chunk, started, ends, strict=True):
                if end is None:
                    joining.append((row, start.pieces))
                    if row.request.report:
                        done.append((row.ticket, row.result(Finish.PARTIAL)))
                    continue
                done.append((row.ticket, end))
                self._keep(row, end, lambda pieces=start.pieces: CachedPrefix.joined(pieces))  # type: ignore[misc]
            self._slab.add([pieces for _, pieces in joining])
            self.rows += [row for row, _ in joining]
        return done

    def _scope(self, prompt: tuple[int, ...]) -> PrefixScope:
        invocation = self._model.invocations.get(self._adapter or "")
        if invocation is None:
            return PrefixScope(self._adapter)
        from selfrag.engines.adapters import invocation_start

        return PrefixScope(self._adapter, invocation_start(prompt, invocation))

    def _compute_base(self, beginnings: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
        """Cache the base model's keys and values of these ids; return how many tokens were computed for each."""
        missing = sorted({ids for ids in beginnings if self._prefixes.longest(None, ids)[1] < len(ids)})
        computed = {}
        for indices, started in self._prefill(missing, BASE) if missing else ():
            for index, start in zip(indices, started, strict=True):
                self._prefixes.put(None, missing[index], CachedPrefix.joined(start.pieces))
                computed[missing[index]] = len(missing[index]) - start.cached
        return computed

    def advance(self) -> list[tuple[Ticket, Generated | Failed]]:
        """One more token for every row; returns what finished."""
        if not self.rows:
            return []
        positions = torch.tensor(self._slab.lengths).unsqueeze(1)
        cache = self._slab.extend()
        columns = self._slab.used
        mask = torch.arange(columns) >= columns - torch.tensor(self._slab.lengths).unsqueeze(1)
        ids = torch.tensor([[row.ids[-1]] for row in self.rows])
        logits = self._run(ids, mask, positions, cache, self._adapter)
        ends = self._choose(self.rows, logits)
        done: list[tuple[Ticket, Generated | Failed]] = []
        for index in reversed(range(len(ends))):
            if (end := ends[index]) is not None:
                done.append((self.rows[index].ticket, end))
                self._remove(index, end)
        return done[::-1]

    def abort(self, tickets: frozenset[Ticket]) -> None:
        """Drop rows. Of one that was reported the prompt is kept: it may be asked for again."""
        for index in reversed(range(len(self.rows))):
            row = self.rows[index]
            if row.ticket in tickets:
                self._remove(index, row.result(Finish.PARTIAL) if row.request.report else None)

    def _remove(self, index: int, end: Generated | Failed | None) -> None:
        self._keep(self.rows[index], end, lambda: CachedPrefix.joined([self._slab.row(index)]))
        self._slab.drop(index)
        last = self.rows.pop()
        if index < len(self.rows):
            self.rows[index] = last

    def _run(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: object, adapter: str | None) -> Tensor:
        device = self._model.device
        return self._model.last_logits(
            ids.to(device), mask.to(device, torch.long), positions.to(device), cache, adapter
        )

    # Starting: what is shared first, then the rest of each prompt.

    def _prefill(
        self, prompts: Sequence[tuple[int, ...]], scope: PrefixScope
    ) -> Iterator[tuple[list[int], list[PrefilledPrompt]]]:
        """Compute prompts in chunks; yields positions in `prompts` and what came out, each prompt once."""
        # The last id of a prompt is always computed: its logits are the first result.
        known = [self._longest(prompt, scope)[1] for prompt in prompts]
        shared = shared_prefixes(prompts, known, MIN_SHARED)
        charge = dict.fromkeys(range(len(prompts)), 0)
        if shared:
            for indices, started in self._prefill([tokens for tokens, _ in shared], scope):
                for index, start in zip(indices, started, strict=True):
                    tokens, owner = shared[index]
                    charge[owner] += len(tokens) - start.cached
                    self._prefixes.put(scope.key, tokens, CachedPrefix.joined(start.pieces))
        hits = [self._hit(prompt, scope) for prompt in prompts]
        for indices in self._chunks([len(prompt) - length for prompt, (_, length) in zip(prompts, hits, strict=True)]):
            chosen = [(prompts[i], hits[i][0], hits[i][1] - charge[i]) for i in indices]
            yield indices, self._prefill_chunk(chosen, scope)

    def _longest(self, prompt: tuple[int, ...], scope: PrefixScope) -> tuple[CachedPrefix | None, int]:
        """The longest cached prefix of a prompt without its last id, from its scope or the base model's."""
        own = self._prefixes.longest(scope.key, prompt[:-1])
        if own[1] >= scope.dormant_length:
            return own
        return max(own, self._prefixes.longest(None, prompt[: scope.dormant_length]), key=lambda found: found[1])

    def _hit(self, prompt: tuple[int, ...], scope: PrefixScope) -> tuple[CachedPrefix | None, int]:
        payload, length = self._longest(prompt, scope)
        return (None, 0) if payload is None else (payload.part(0, length), length)

    def _chunks(self, sizes: Sequence[int]) -> Iterator[list[int]]:
        """Positions in groups of similar size, each group within the token budget once padded."""
        chunk: list[int] = []
        for index in sorted(range(len(sizes)), key=sizes.__getitem__):
            if chunk and sizes[index] * (len(chunk) + 1) > self._max_prefill_tokens:
                yield chunk
                chunk = []
            chunk.append(index)
        if chunk:
            yield chunk

    def _prefill_chunk(
        self, chosen: Sequence[tuple[tuple[int, ...], CachedPrefix | None, int]], scope: PrefixScope
    ) -> list[PrefilledPrompt]:
        cache, width = padded_cache([prefix for _, prefix, _ in chosen])
        starts = [len(prefix) if prefix is not None else 0 for _, prefix, _ in chosen]
        sizes = [len(prompt) - start for (prompt, _, _), start in zip(chosen, starts, strict=True)]
        new = max(sizes)
        ids = torch.zeros((len(chosen), new), dtype=torch.long)
        positions = torch.zeros((len(chosen), new), dtype=torch.long)
        mask = torch.zeros((len(chosen), width + new), dtype=torch.long)
        for i, ((prompt, _, _), start, size) in enumerate(zip(chosen, starts, sizes, strict=True)):
            ids[i, new - size :] = torch.tensor(prompt[start:])
            positions[i, new - size :] = torch.arange(start, len(prompt))
            mask[i, width - start : width] = 1
            mask[i, width + new - size :] = 1
        logits = self._run(ids, mask, positions, cache, scope.adapter)
        started = []
        for i, ((_, prefix, cached), size) in enumerate(zip(chosen, sizes, strict=True)):
            fresh = row_of(cache.layers, i, width + new - size, width + new)
            started.append(PrefilledPrompt((fresh,) if prefix is None else (prefix, fresh), logits[i], cached))
        return started

    # Choosing: one token a row from its logits.

    def _choose(self, rows: Sequence[RunningRequest], logits: Tensor) -> list[Generated | Failed | None]:
        """Append the next token of every row; for each row its result if that ended it, else None."""
        for i, row in enumerate(rows):
            if row.matcher is not None:
                logits[i] = row.matcher.masked(logits[i])
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logprobs.argmax(dim=-1)
        for i, row in enumerate(rows):
            if row.request.allowed_ids is not None:
                allowed = torch.tensor(row.request.allowed_ids, device=logits.device)
                chosen[i] = allowed[logprobs[i, allowed].argmax()]
            elif row.matcher is not None:
                row.stuck = not row.matcher.accept(int(chosen[i]))
        values = logprobs.gather(1, chosen.unsqueeze(1)).squeeze(1).tolist()
        for row, token_id, value, watched in zip(
            rows, chosen.tolist(), values, self._watched(rows, logprobs), strict=True
        ):
            row.ids.append(token_id)
            row.logprobs.append(value)
            row.watched.append(watched)
        return [self._end(row) for row in rows]

    def _watched(self, rows: Sequence[RunningRequest], logprobs: Tensor) -> list[NDArray[np.float32]]:
        found: dict[int, NDArray[np.float32]] = {}
        for watch in {row.request.watch_ids for row in rows}:
            members = [i for i, row in enumerate(rows) if row.request.watch_ids == watch]
            columns = torch.tensor(watch, dtype=torch.long, device=logprobs.device)
            block = logprobs[torch.tensor(members, device=logprobs.device)][:, columns].cpu().numpy()
            found.update(zip(members, block, strict=True))
        return [found[i] for i in range(len(rows))]

    def _end(self, row: RunningRequest) -> Generated | Failed | None:
        request, count = row.request, len(row.ids)
        if row.stuck:
            return Failed("the constraint allows no token here")
        if not np.isfinite(row.logprobs[-1]):
            return Failed("the model gave no finite probability to any token; load it with dtype float32")
        if row.ids[-1] in self._model.eos_ids:
            finish = Finish.EOS
        elif row.ids[-1] in request.stop_ids:
            finish = Finish.STOP
        elif count >= request.max_tokens:
            finish = Finish.BUDGET
        elif len(request.prompt_ids) + count >= self._model.max_model_len:
            finish = Finish.CONTEXT
        else:
            return None
        return row.result(finish)

    def _keep(self, row: RunningRequest, end: Generated | Failed | None, copy: Callable[[], CachedPrefix]) -> None:
        """Remember a finished sequence for whatever continues it.

        Not what follows an invocation: it is short and is not continued. Nor a single token a little behind a kept
        prefix: copying a long conversation for each label that is scored would cost more than the tokens do.
        """
        if not isinstance(end, Generated) or row.scope.start is not None:
            return
        fresh = len(row.computed) - self._prefixes.longest(row.scope.key, row.computed)[1]
        if fresh >= (MIN_SHARED if row.request.max_tokens == 1 else 1):
            self._prefixes.put(row.scope.key, row.computed, copy())
