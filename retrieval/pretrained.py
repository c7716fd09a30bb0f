"""Hugging Face checkpoints: loaded without their code, in the number format this machine is fast in.

Every `from_pretrained` of transformers and PEFT in this project is here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import UserError

# What `torch.cpu.get_capabilities()` calls the instructions that multiply matrices in 16 bits.
_INSTRUCTIONS = {
    "bfloat16": ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"),
    "float16": ("amx_fp16", "avx512_fp16"),
}

# Values of these variables with which torch and oneDNN leave such instructions alone, whatever the CPU has.
_CAPS = {
    "ATEN_CPU_CAPABILITY": ("DEFAULT", "AVX2"),
    "ONEDNN_MAX_CPU_ISA": ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"),
}

_SAVED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A number format of weights, and why this one."""

    name: str  # `float32`, `bfloat16` or `float16`; `auto` leaves the choice to what loads the weights
    reason: str  # in a few words

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def load(kind: str, source: str | Path, *, trust_remote_code: bool = False, **settings: Any) -> Any:
    """What a checkpoint holds, by an auto class of transformers such as `AutoTokenizer`."""
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(source, trust_remote_code=trust_remote_code, **settings)
    except Exception as error:
        if wants_own_code(error):
            raise own_code_refused(source) from error
        raise


def load_adapter(model: Any, directory: str | Path, **settings: Any) -> Any:
    """`model` with the PEFT adapter of a directory; one that names a module to import is refused."""
    from peft import PeftModel

    config = settings.pop("config", None) or adapter_config(directory)
    with quiet():  # PEFT reads an old name of transformers 5.24
        return PeftModel.from_pretrained(model, directory, config=config, **settings)


def adapter_config(directory: str | Path) -> Any:
    """PEFT's configuration of an adapter."""
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(directory)
    if getattr(config, "megatron_config", None):  # PEFT would import whatever `megatron_core` names
        raise UserError(f"adapter {directory} names a module to import (megatron_config); take that setting out")
    return config


def wants_own_code(error: BaseException | None) -> bool:
    """Whether something was not loaded because it needs code of the checkpoint, by the error or one that caused it."""
    while error is not None:
        if "trust_remote_code" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def own_code_refused(source: str | Path) -> UserError:
    """What to say of a checkpoint that cannot be loaded without its code."""
    return UserError(
        f"{source} needs Python code of its own, and none was run: take a checkpoint that transformers knows, or read"
        " that code and give an engine trust_remote_code=True"
    )


def number_format(wanted: str, source: str | Path, device: str) -> NumberFormat:
    """The format to hold a checkpoint's weights in; on every device but `cpu` all formats are taken to be fast.

    `auto` is the checkpoint's own where the device has instructions for it, else float32, which takes up to twice the
    memory and is exact. It never rounds a checkpoint.
    """
    if wanted != "auto":
        return NumberFormat(wanted, "as asked for")
    own = saved_format(source)
    if own is None:
        return NumberFormat("auto", "the checkpoint does not say its format, or is quantised")
    if own == "float32" or not device.startswith("cpu"):
        return NumberFormat(own, "as saved")
    found, why = cpu_instructions(own)
    return NumberFormat(own, f"as saved; {why}") if found else NumberFormat("float32", f"saved in {own}; {why}")


def fast_format(device: str | None = None) -> NumberFormat:
    """`bfloat16` where a torch device multiplies matrices in it, else `float32`; by default of this machine's best."""
    import torch

    device = device or best_device()
    if device.startswith("cuda"):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return NumberFormat("bfloat16", "this GPU multiplies in bfloat16")
        return NumberFormat("float32", "this GPU does not multiply in bfloat16")
    if not device.startswith("cpu"):
        return NumberFormat("bfloat16", f"on {device}")
    found, why = cpu_instructions("bfloat16")
    return NumberFormat("bfloat16" if found else "float32", why)


def best_device() -> str:
    """`cuda` where there is one, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def cpu_instructions(
    name: str, capabilities: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> tuple[bool, str]:
    """Whether the CPU multiplies matrices in `bfloat16` or `float16`, and by what that is known.

    Without such instructions every number is converted back and forth: on one CPU that was held back, products of 64
    rows took 1.7 to 2 times (AVX-512) and 5 times (AVX2) as long as in float32. The defaults are the capabilities of
    this machine and the environment of this process.
    """
    environment = os.environ if environment is None else environment
    for variable, low in _CAPS.items():
        if (value := environment.get(variable, "")).upper() in low:
            return False, f"{variable}={value} allows no {name} instructions"
    if capabilities is None:
        import torch

        capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch does not tell
    flag = next((flag for flag in _INSTRUCTIONS[name] if capabilities.get(flag)), None)
    return (True, f"this CPU has {flag}") if flag else (False, f"this CPU has no {name} instructions")


def saved_format(source: str | Path) -> str | None:
    """The format a checkpoint says it was saved in, or else that of its first weight; None if quantised or unknown."""
    from safetensors import safe_open
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(source)  # only reads JSON
        text = config.get("text_config") or {}
        if config.get("quantization_config") or text.get("quantization_config"):
            return None
        said = next((one[key] for one in (config, text) for key in ("dtype", "torch_dtype") if one.get(key)), None)
        if said is not None:
            name = str(said).removeprefix("torch.")
            return name if name in _SAVED.values() else None
        for file in sorted(Path(source).glob("*.safetensors")):
            with safe_open(str(file), "pt") as weights:
                return _SAVED.get(weights.get_slice(next(iter(weights.keys()))).get_dtype())
    except Exception:  # loading says what is wrong with it
        return None
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, load reports and deprecations of transformers; restored afterwards."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
