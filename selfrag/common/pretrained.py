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

from selfrag.common.checks import check_float, check_int
from selfrag.common.errors import UserError, require
from selfrag.common.reading import read_json

# What `torch.cpu.get_capabilities()` calls the instructions that multiply matrices in 16 bits.
_INSTRUCTIONS = {
    "bfloat16": ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"),
    "float16": ("amx_fp16", "avx512_fp16"),
}

# Values of these variables with which torch and oneDNN leave such instructions alone, whatever the CPU has.
_CAPS = {
    "ATEN_CPU_CAPABILITY": "DEFAULT AVX2",
    "ONEDNN_MAX_CPU_ISA": "SSE41 AVX AVX2 AVX2_VNNI AVX2_VNNI_2 AVX512_CORE AVX512_CORE_VNNI",
}

_SAVED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A number format of weights, and why this one."""

    name: str  # `float32`, `bfloat16` or `float16`; `auto` leaves the choice to what loads the weights
    reason: str  # in a few words

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def load(
    kind: str, source: str | Path, *, trust_remote_code: bool = False, **settings: Any
) -> Any:
    """Return what a checkpoint holds, by an auto class of transformers such as `AutoTokenizer`."""
    transformers = require("transformers", extra="cpu")
    check_config(source)
    try:
        return getattr(transformers, kind).from_pretrained(
            source, trust_remote_code=trust_remote_code, **settings
        )
    except Exception as error:
        if wants_own_code(error):
            raise own_code_refused(source) from error
        # A family that does not know an attention says so by a KeyError, and its caller asks for another one.
        unknown_attention = (
            isinstance(error, KeyError) and "attn_implementation" in settings
        )
        if unknown_attention or isinstance(
            error, UserError | OSError | ValueError | ImportError
        ):
            raise
        raise unusable(source, error) from error


def unusable(source: str | Path, error: Exception) -> UserError:
    """Return what to say of a checkpoint whose files transformers cannot use, whatever it raised."""
    message = " ".join(str(error).split())[:300]
    return UserError(
        f"{source} cannot be loaded ({type(error).__name__}: {message}); its config.json or another file is wrong: copy"
        " or download the checkpoint again"
    )


_COUNTS = (
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size max_position_embeddings"
    " n_embd n_head n_layer n_positions d_model num_heads num_layers"
)
_NUMBERS = "rms_norm_eps layer_norm_eps layer_norm_epsilon rope_theta initializer_range"


def check_config(source: str | Path) -> None:
    """Refuse a checkpoint's `config.json` with values that no model has, naming the field.

    Transformers takes them in, and fails later in many ways: it divides by 0, or fills the memory.

    Raises:
        UserError: the file is no JSON object, or a value is of the wrong type or size.
    """
    path = Path(source) / "config.json"
    if not path.is_file():
        return
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError(
            f"{path} holds no object; copy or download the checkpoint again"
        )
    text = config.get("text_config")
    if not isinstance(text, dict | None):
        raise UserError(f"{path}: text_config={text!r:.60} is no object")
    for prefix, table in (("", config), ("text_config.", text or {})):
        for name, value in table.items():
            place = f"{path}: {prefix}{name}"
            # Some families have a list, a number a layer; transformers checks it.
            if name in _COUNTS.split() and not isinstance(value, list | None):
                check_int(place, value, 1, 2**31)
            elif name in _NUMBERS.split() and value is not None:
                check_float(place, value, 0, 1e12)


def quantisation(source: str | Path) -> str | None:
    """Return the kind of quantisation that a checkpoint was saved with, such as `gptq`; None for plain weights."""
    path = Path(source) / "config.json"
    config = read_json(path) if path.is_file() else None
    if not isinstance(config, dict):
        return None
    for table in (config, config.get("text_config")):
        for name in ("quantization_config", "compression_config"):
            settings = table.get(name) if isinstance(table, dict) else None
            if settings:
                kind = isinstance(settings, dict) and settings.get("quant_method")
                return str(kind or "an unnamed method")[:60]
    return None


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
    # PEFT would import whatever `megatron_core` names
    if getattr(config, "megatron_config", None):
        raise UserError(
            f"adapter {directory} names a module to import (megatron_config); take that setting out"
        )
    return config


def wants_own_code(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, says that a checkpoint needs code of its own."""
    while error is not None:
        if "trust_remote_code" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def own_code_refused(source: str | Path) -> UserError:
    """Return the error of a checkpoint that cannot be loaded without its code."""
    return UserError(
        f"{source} needs Python code of its own, and none was run: take a checkpoint that transformers knows, or read"
        " that code and give an engine trust_remote_code=True"
    )


FORMATS = ("auto", "float32", "bfloat16", "float16")
"""Number formats that transformers and vLLM compute in."""


def number_format(choice: str, source: str | Path, device: str) -> NumberFormat:
    """Return the format to hold a checkpoint's weights in; on every device but `cpu` 16 bits are taken to be fast.

    `auto` is the checkpoint's own format with two exceptions. A CPU without instructions for it takes float32, which is
    exact. A GPU holds what was saved in float32 in bfloat16, as vLLM does: half the memory, at twice the speed or more.
    """
    if choice != "auto":
        return NumberFormat(choice, "as asked for")
    saved = saved_format(source)
    if saved is None:
        return NumberFormat(
            "auto", "the checkpoint does not say its format, or is quantised"
        )
    if saved == "float32" and not device.startswith("cpu"):
        fast = fast_format(device)
        return NumberFormat(
            fast.name, f"saved in float32; {fast.reason}; dtype=float32 keeps it"
        )
    if saved == "float32" or not device.startswith("cpu"):
        return NumberFormat(saved, "as saved")
    is_fast, why = cpu_instructions(saved)
    if is_fast:
        return NumberFormat(saved, f"as saved; {why}")
    return NumberFormat("float32", f"saved in {saved}; {why}")


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
    is_fast, why = cpu_instructions("bfloat16")
    return NumberFormat("bfloat16" if is_fast else "float32", why)


def best_device() -> str:
    """`cuda` where there is one, else `cpu`."""
    torch = require("torch", extra="cpu")
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"


def cpu_instructions(
    name: str,
    capabilities: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[bool, str]:
    """Return whether the CPU multiplies matrices in `bfloat16` or `float16`, and by what that is known.

    Without such instructions every number is converted back and forth: on one CPU that was held back, products of 64
    rows took 1.7 to 2 times (AVX-512) and 5 times (AVX2) as long as in float32. The defaults are the capabilities of
    this machine and the environment of this process.
    """
    if environment is None:
        environment = os.environ
    for variable, low in _CAPS.items():
        value = environment.get(variable, "")
        if value.upper() in low.split():
            return False, f"{variable}={value} allows no {name} instructions"
    if capabilities is None:
        import torch

        # an older torch does not tell
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    for flag in _INSTRUCTIONS[name]:
        if capabilities.get(flag):
            return True, f"this CPU has {flag}"
    return False, f"this CPU has no {name} instructions"


def saved_format(source: str | Path) -> str | None:
    """Return the format that a checkpoint or its first weight was saved in; None if quantised or unknown."""
    from safetensors import safe_open
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(source)  # only reads JSON
        text = config.get("text_config") or {}
        if config.get("quantization_config") or text.get("quantization_config"):
            return None
        keys = ("dtype", "torch_dtype")
        stated = [table.get(key) for table in (config, text) for key in keys]
        dtype = next(filter(None, stated), None)
        if dtype is not None:
            name = str(dtype).removeprefix("torch.")
            return name if name in _SAVED.values() else None
        for file in sorted(Path(source).glob("*.safetensors")):
            with safe_open(str(file), "pt") as weights:
                return _SAVED.get(
                    weights.get_slice(next(iter(weights.keys()))).get_dtype()
                )
    except Exception:  # loading says what is wrong with it
        return None
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off progress bars, load reports and deprecations of transformers in this block."""
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


def leave_out_cudnn_attention() -> None:
    """Keep torch from computing attention by cuDNN, for the whole process, as vLLM does.

    torch 2.11 takes cuDNN first on recent GPUs. cuDNN builds a plan for every new shape, which can take a second
    (https://github.com/modelscope/FunASR/issues/3704). Rows of training have every length, and a prompt grows with each
    token, so nearly every step is a new shape. Flash attention and the others need no plan.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
