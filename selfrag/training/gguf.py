"""GGUF file in, plain bf16 Hugging Face checkpoint out. Knows nothing of reflection tokens or adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.pretrained import load
from selfrag.errors import UserError
from selfrag.training.directories import published


def convert(gguf_path: Path, out_dir: Path) -> Path:
    """De-quantise a GGUF model into a directory that vLLM and transformers load.

    The result holds bf16 weights and the tokenizer, and no quantisation config: the weights are ordinary numbers from
    here on, as far from the published model as the GGUF's rounding left them.

    Args:
        gguf_path: a `.gguf` file of an architecture that transformers reads.
        out_dir: made by this call; must not exist, or be empty. It appears complete or not at all.

    Returns:
        `out_dir`.

    Raises:
        UserError: the file is missing or not GGUF, or `out_dir` is in use.
    """
    _check(gguf_path)
    import torch

    source: dict[str, Any] = {"gguf_file": gguf_path.name, "local_files_only": True}
    try:
        tokenizer = load("AutoTokenizer", gguf_path.parent, **source)
        loaded = load("AutoModelForCausalLM", gguf_path.parent, dtype=torch.bfloat16, **source)
    except (OSError, ValueError, KeyError, IndexError, AttributeError, RuntimeError) as error:  # whatever it holds
        raise UserError(f"{gguf_path} cannot be read ({str(error)[:200]}); download it again") from error
    # A model read from GGUF would save its quantisation config too, and loaders would then look for packed weights.
    config = type(loaded.config)(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    config.dtype = torch.bfloat16
    fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.to(torch.bfloat16)
    fresh.tie_weights()
    with published(out_dir) as directory:
        fresh.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    return out_dir


def _check(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"no GGUF file at {path}")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise UserError(f"{path} is not a GGUF file (it starts with {magic!r}); download it again")
