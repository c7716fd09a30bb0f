"""What an earlier stage hands to the next: the parameters of a finished run, or of an adapter that was exported.

Knows their files; which parameters there are is the trainee's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.training.export import WEIGHTS
from selfrag.training.journal import CHECKPOINT, fingerprint, read_state, set_parameters

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

    from selfrag.training.model import Lora


def check_stage(start: Path) -> None:
    """Refuse what is no earlier stage, by its files alone.

    Raises:
        UserError: there is neither a run nor an adapter.
    """
    if not any((start / name).is_file() for name in (CHECKPOINT, WEIGHTS)):
        raise UserError(f"{start} holds neither {CHECKPOINT} nor {WEIGHTS}; give the folder of a run, or of an adapter")


def load_parameters(start: Path, parameters: Mapping[str, Parameter], lora: Lora) -> str:
    """Set parameters to those of an earlier stage, and return the fingerprint of the file that they came from.

    Args:
        start: directory of a run, or of an adapter as `save_adapter` writes it (in bf16: rounded once more than a run).
        parameters: what is trained, by name.
        lora: size of the trainee's adapter; not read where `start` is a run.

    Raises:
        UserError: `start` holds neither, or that of a model of another shape.
    """
    checkpoint, weights = start / CHECKPOINT, start / WEIGHTS
    exported = weights.is_file() and not checkpoint.exists()
    path = weights if exported else checkpoint
    digest = fingerprint(path)
    found = _adapter(path, lora) if exported else read_state(path)["parameters"]
    wanted = {_plain(name) if exported else name: parameter for name, parameter in parameters.items()}
    if {name: value.shape for name, value in found.items()} != {name: value.shape for name, value in wanted.items()}:
        raise UserError(f"{path} is of another model, method or adapter size; start from one of the same kind")
    set_parameters(wanted, found)
    return digest


def _adapter(path: Path, lora: Lora) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    settings = path.parent / "adapter_config.json"
    try:
        alpha = read_json(settings)["lora_alpha"]
        found: dict[str, Tensor] = load_file(path)
    except (UserError, OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{path.parent} holds no adapter that can be read: {error}") from error
    if alpha != lora.alpha:
        raise UserError(
            f"{settings} has lora_alpha {alpha}, this training {lora.alpha}; start from one of the same size"
        )
    return found


def _plain(name: str) -> str:
    """As PEFT's files have it: without the name of the adapter."""
    return name.replace(".default", "")
