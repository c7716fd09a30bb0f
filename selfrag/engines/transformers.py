"""`TransformersEngine`: the reference engine, and the one for machines without vLLM.

Batches what waits, shares what prompts have in common, keeps recent prefixes, and drops finished rows at once. Knows
queues and tickets; the model is in `transformers_model`, running rows in `transformers_batch`. In float32 a greedy
result does not depend on what else is in the batch; in 16-bit formats near-ties can fall either way.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from retrieval.checks import choice, whole
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.activation import dormant
from selfrag.engines.base import Limits, Ticket, check_process, refusal
from selfrag.engines.prefixes import PrefixCache
from selfrag.errors import EngineError

if TYPE_CHECKING:
    from selfrag.engines.transformers_batch import Batch
    from selfrag.engines.transformers_kv import Prefix
    from selfrag.engines.transformers_model import LoadedModel


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """How to run a checkpoint under transformers.

    Attributes:
        model: directory or hub name of a causal language model.
        dtype: number format of the weights; `auto` is what the checkpoint was saved in, or float32 on a CPU without
            instructions for that.
        device: `auto` (CUDA where there is one), or a torch device.
        max_batch: sequences that run together.
        max_model_len: prompt and new tokens together; None is what the model was made for.
        max_prefill_tokens: prompt tokens computed in one pass, padding included; bounds the memory of a pass.
        prefix_cache_mib: memory for keys and values of earlier prompts; 0 shares only among waiting requests.
        adapters: name to directory of LoRA adapters, plain or activated, that requests may ask for.
        trust_remote_code: let Python code that a checkpoint brings run, with all your rights. Read it first.
    """

    model: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    max_batch: int = 32
    max_model_len: int | None = None
    max_prefill_tokens: int = 8192
    prefix_cache_mib: int = 512
    adapters: Mapping[str, str | Path] = field(default_factory=dict)
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        choice("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        for name, least in (("max_batch", 1), ("max_model_len", 2), ("max_prefill_tokens", 1), ("prefix_cache_mib", 0)):
            if (value := getattr(self, name)) is not None:
                whole(name, value, least)


class TransformersEngine:
    """An `Engine` on a transformers model in this process."""

    def __init__(self, model: LoadedModel, config: TransformersConfig) -> None:
        self._model: LoadedModel | None = model
        self._config = config
        self._limits = Limits(model.max_model_len, model.vocab_size, adapters=model.adapters)
        self._prefixes: PrefixCache[Prefix] = PrefixCache(config.prefix_cache_mib << 20)
        self._waiting: deque[tuple[Ticket, Generate]] = deque()
        self._refused: list[tuple[Ticket, Generated | Failed]] = []
        self._batches: dict[str | None, Batch] = {}
        self._started: set[Ticket] = set()
        self._next: Ticket = 0
        self._death: str | None = None
        self._pid = os.getpid()

    @classmethod
    def load(cls, config: TransformersConfig) -> TransformersEngine:
        """Load the model.

        Raises:
            EngineError: the checkpoint, an adapter or a setting is unusable; one line says why.
        """
        from selfrag.engines import transformers_model

        model = transformers_model.load(
            config.model,
            dtype=config.dtype,
            device=config.device,
            max_model_len=config.max_model_len,
            adapters=config.adapters,
            trust_remote_code=config.trust_remote_code,
        )
        return cls(model, config)

    @property
    def limits(self) -> Limits:
        """What the engine can take."""
        return self._limits

    def submit(self, request: Generate) -> Ticket:
        """Queue a request; one that cannot be served comes back as `Failed` from the next step.

        Raises:
            EngineError: the engine is closed or has died.
        """
        self._require_alive()
        ticket, self._next = self._next, self._next + 1
        if problem := refusal(request, self._limits) or self._dormant(request):
            self._refused.append((ticket, Failed(problem)))
        else:
            self._waiting.append((ticket, request))
        return ticket

    def step(self) -> Sequence[tuple[Ticket, Generated | Failed]]:
        """Start what waits if there is room, generate one token for everything that runs, return what finished.

        Raises:
            EngineError: the model failed, for example for lack of memory; the engine is dead then.
        """
        self._require_alive()
        done = list(self._refused)
        if self._waiting or self._batches:
            done += self._work()
        self._refused.clear()
        self._started.difference_update(ticket for ticket, _ in done)
        return done

    def _work(self) -> list[tuple[Ticket, Generated | Failed]]:
        import torch

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
            raise EngineError(str(self._death)) from error
        except BaseException:
            self._interrupted()
            raise
        self._prefixes.trim()
        self._batches = {adapter: batch for adapter, batch in self._batches.items() if len(batch)}
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests; nothing comes back for them."""
        gone = frozenset(tickets)
        self._waiting = deque(item for item in self._waiting if item[0] not in gone)
        self._refused = [item for item in self._refused if item[0] not in gone]
        self._started -= gone
        if not self._batches:
            return
        import torch

        with torch.inference_mode():
            for batch in self._batches.values():
                batch.abort(gone)

    def close(self) -> None:
        """Free the model. Further calls of `submit` and `step` raise `EngineError`."""
        if self._death is None:
            self._die("the engine is closed")

    def _dormant(self, request: Generate) -> str | None:
        invocation = self._live_model.invocations.get(request.adapter or "")
        if invocation is None or request.adapter is None:
            return None
        return dormant(request.adapter, request.prompt_ids, invocation)

    def _admit(self) -> list[tuple[Ticket, Generated | Failed]]:
        """Start waiting requests in waves: a pass over many prompts is cheaper than many passes over one."""
        from selfrag.engines.transformers_batch import Batch, Row

        running = sum(len(batch) for batch in self._batches.values())
        room = self._config.max_batch - running
        if not self._waiting or room < min(len(self._waiting), max(1, self._config.max_batch // 4)):
            return []
        wave: dict[str | None, list[Row]] = {}
        for _ in range(min(room, len(self._waiting))):
            ticket, request = self._waiting.popleft()
            wave.setdefault(request.adapter, []).append(Row(ticket, request))
            self._started.add(ticket)
        done: list[tuple[Ticket, Generated | Failed]] = []
        for adapter, rows in wave.items():
            if adapter not in self._batches:
                self._batches[adapter] = Batch(
                    self._live_model, adapter, self._prefixes, self._config.max_prefill_tokens
                )
            done += self._batches[adapter].start(rows)
        return done

    def _interrupted(self) -> None:
        """After Ctrl-C inside a step rows may be half written: they are lost, the engine is not."""
        self._refused += [(ticket, Failed("interrupted")) for ticket in sorted(self._started)]
        self._started.clear()
        self._batches.clear()

    @property
    def _live_model(self) -> LoadedModel:
        self._require_alive()
        assert self._model is not None  # noqa: S101 - only `_die` clears it
        return self._model

    def _require_alive(self) -> None:
        check_process(self._pid)
        if self._death is not None:
            raise EngineError(self._death)

    def _die(self, why: str) -> None:
        self._death = " ".join(why.split())
        self._model = None
        self._waiting.clear()
        self._refused.clear()
        self._batches.clear()
        self._prefixes.clear()
