"""Pooling, normalisation and length of an encoder, as a sentence-transformers directory states them. Loads no model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import UserError

_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How token vectors become a text vector.

    Attributes:
        pooling: `mean` over the tokens, or `cls` for the first.
        normalize: scale vectors to length 1.
        max_tokens: texts are cut at this many tokens; None for the model's own limit.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.pooling not in _POOLINGS.values():
            raise UserError(f"unknown pooling {self.pooling!r}; known: {', '.join(_POOLINGS.values())}")


class UnsupportedModulesError(UserError):
    """The directory describes modules beyond transformer, pooling and normalisation."""


def stated_settings(directory: Path) -> EncoderSettings:
    """What `modules.json` and its neighbours say; a directory without them is Contriever-like: mean pooling, as it is.

    Raises:
        UnsupportedModulesError: it needs sentence-transformers itself.
    """
    modules = _read(directory / "modules.json", [])
    if not modules:
        return EncoderSettings()
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if set(kinds) - {"Transformer", "Pooling", "Normalize"} or kinds[0] != "Transformer":
        raise UnsupportedModulesError(
            f"encoder {directory} has the modules {', '.join(kinds)}; use SentenceTransformerEncoder"
        )
    pooling = "mean"
    if "Pooling" in kinds:
        pooling = _pooling(_read(directory / modules[kinds.index("Pooling")]["path"] / "config.json", {}), directory)
    length = _read(directory / modules[0].get("path", "") / "sentence_bert_config.json", {}).get("max_seq_length")
    return EncoderSettings(pooling, "Normalize" in kinds, length)


def _pooling(config: dict[str, Any], directory: Path) -> str:
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode") and value is True]
    if isinstance(config.get("pooling_mode"), str):  # newer sentence-transformers state one name
        chosen = [f"pooling_mode_{config['pooling_mode']}_{'token' if config['pooling_mode'] == 'cls' else 'tokens'}"]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise UnsupportedModulesError(
            f"encoder {directory} pools by {', '.join(chosen) or 'nothing'}; use SentenceTransformerEncoder"
        )
    return _POOLINGS[chosen[0]]


def _read(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); fetch the encoder again") from error
