"""The options of commands that load a model into an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from selfrag.cli.fields import Fields, FieldValues
from selfrag.common.checks import parse_settings


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which engine loads a model, and how.

    Attributes:
        name: vllm, transformers or http://HOST:PORT; by default vllm on a GPU, and the best one installed on a CPU
            (`ask`, `chat`, `mcp`: transformers, which starts soonest).
        dtype: number format of the weights; by default that of the checkpoint, but a fast one for float32 on a GPU.
        deterministic: the same question gives the same bytes, again and in any batch; slower.
        settings: setting of the engine, KEY=VALUE, such as max_model_len=4096 or tensor_parallel_size=2.
    """

    name: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    deterministic: bool = False
    settings: tuple[str, ...] = ()


EngineChoice = Annotated[
    FieldValues,
    Fields(
        EngineOptions,
        "What answers",
        "name=--engine",
        "dtype",
        "deterministic",
        "settings=--engine-set",
    ),
]


def engine_options(engine: FieldValues) -> tuple[str | None, dict[str, Any]]:
    """Return the name of the engine, None for the best one installed, and the fields of its configuration."""
    settings = parse_settings(engine.get("settings", ()), "--engine-set")
    for name in ("dtype", "deterministic"):
        if name in engine:
            settings[name] = engine[name]
    return engine.get("name"), settings


def quick_engine(engine: FieldValues, model: str) -> FieldValues:
    """Return the options of an engine for one question: without a name and without a GPU, transformers."""
    from selfrag.engines import gpu_engine
    from selfrag.loading import model_address

    if model_address(model) is not None:
        return engine
    return {"name": gpu_engine() or "transformers"} | engine
