"""Settings of the in-process vLLM engine, and what they mean to vLLM on a CPU and on a GPU. Imports no vllm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval.checks import number, whole
from retrieval.pretrained import number_format
from retrieval.reading import user_path
from selfrag.engines.lora import Adapter, max_lora_rank
from selfrag.errors import EngineError

GIB = 1 << 30

# On a CPU vLLM shares prefixes in blocks of 128 tokens, so most instructions would never be found again. With blocks of
# 32 the same kernels run at the same speed and a prompt of 40 tokens is already shared.
CPU_BLOCK_SIZE = 32
CPU_KV_CACHE_GIB = 2.0
CPU_MAX_NUM_SEQS = 64
MAX_LORAS_IN_A_BATCH = 8


@dataclass(frozen=True, slots=True)
class VLLMConfig:
    """How to load a model into vLLM. None leaves a choice to the platform.

    Attributes:
        model: checkpoint directory, or a name on the model hub.
        max_model_len: longest prompt and answer together; the model's own limit by default.
        dtype: `auto` is what the checkpoint was saved in, or float32 on a CPU without instructions for that.
        max_num_seqs: sequences computed at once; 64 on a CPU, vLLM's own default on a GPU.
        kv_cache_gib: memory for keys and values, in GiB; 2 on a CPU, what `gpu_memory_utilization` leaves on a GPU.
        enable_prefix_caching: share the computed prefix of prompts.
        tensor_parallel_size: GPUs among which each layer is split.
        gpu_memory_utilization: share of a GPU's memory that vLLM may take.
        adapters: name to directory of the LoRA adapters that requests may ask for.
        seed: of vLLM; greedy decoding does not depend on it.
        enforce_eager: no graph compilation; True on a CPU (a minute of loading for 4% speed), False on a GPU.
        trust_remote_code: let Python code that a checkpoint brings run, with all your rights. Read it first.
        engine_args: further arguments of vLLM's `EngineArgs`; they win over everything above.
    """

    model: str
    max_model_len: int | None = None
    dtype: str = "auto"
    max_num_seqs: int | None = None
    kv_cache_gib: float | None = None
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    adapters: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    enforce_eager: bool | None = None
    trust_remote_code: bool = False
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kv_cache_gib is not None:
            number("kv_cache_gib", self.kv_cache_gib, above=True)
        for name in ("max_model_len", "max_num_seqs"):
            if (value := getattr(self, name)) is not None:
                whole(name, value)
        whole("tensor_parallel_size", self.tensor_parallel_size)
        number("gpu_memory_utilization", self.gpu_memory_utilization, 0, 1, above=True)


def check_model(model: str) -> None:
    """Refuse what is neither a checkpoint directory nor a plausible name on the hub.

    Raises:
        EngineError: the directory does not exist, or holds no `config.json`.
    """
    path = user_path(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise EngineError(f"{model} holds no config.json; give a checkpoint directory that transformers saved")
    elif path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or path.exists():
        raise EngineError(f"model {model} is not a directory; give a checkpoint directory or a name on the hub")


def engine_arguments(config: VLLMConfig, adapters: Sequence[Adapter], *, cpu: bool) -> dict[str, Any]:
    """Keyword arguments of `EngineArgs` for this configuration."""
    dtype = number_format(config.dtype, config.model, "cpu" if cpu else "cuda").name
    if not cpu and dtype != "float32":
        dtype = config.dtype  # vLLM knows which GPUs lack bfloat16; its `auto` only rounds what was saved in float32
    arguments: dict[str, Any] = {
        "model": str(user_path(config.model)) if config.model.startswith("~") else config.model,
        "max_model_len": config.max_model_len,
        "dtype": dtype,
        "trust_remote_code": config.trust_remote_code,
        "max_num_seqs": config.max_num_seqs or (CPU_MAX_NUM_SEQS if cpu else None),
        "enable_prefix_caching": config.enable_prefix_caching,
        "tensor_parallel_size": config.tensor_parallel_size,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "seed": config.seed,
        "enforce_eager": cpu if config.enforce_eager is None else config.enforce_eager,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    cache = config.kv_cache_gib or (CPU_KV_CACHE_GIB if cpu else None)
    if cache is not None:
        arguments["kv_cache_memory_bytes"] = int(cache * GIB)
    if cpu:
        arguments["block_size"] = CPU_BLOCK_SIZE
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
    return {name: value for name, value in arguments.items() if value is not None} | dict(config.engine_args)


def build_environment(*, cpu: bool, kv_cache_is_ours: bool) -> dict[str, str | None]:
    """Variables to hold while vLLM is imported and built; `LD_PRELOAD` is only put back to what it was.

    The in-process client loads several times faster than worker processes on a CPU and uses every core; on a GPU vLLM's
    own choice stands. No usage statistics are sent.
    """
    values: dict[str, str | None] = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if cpu:
        values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if kv_cache_is_ours:
            values["VLLM_CPU_KVCACHE_SPACE"] = None  # it would win over kv_cache_memory_bytes
    return values
