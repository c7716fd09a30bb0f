"""Pooling, normalisation and length of an encoder, as a sentence-transformers directory states them. Loads no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from retrieval.checks import choice, whole
from retrieval.errors import UserError
from retrieval.reading import read_json, user_path

T = TypeVar("T", list[Any], dict[str, Any])

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
        choice("pooling", self.pooling, _POOLINGS.values())
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens)


class UnsupportedModulesError(UserError):
    """The directory describes modules beyond transformer, pooling and normalisation."""


def stated_settings(directory: Path) -> EncoderSettings:
    """What `modules.json` and its neighbours say; a directory without them is Contriever-like: mean pooling, as it is.

    Raises:
        UnsupportedModulesError: it needs sentence-transformers itself.
    """
    modules = _read(directory / "modules.json", list)
    if not modules:
        return EncoderSettings()
    if not all(isinstance(module, dict) and isinstance(module.get("path", ""), str) for module in modules):
        raise UserError(f"{directory / 'modules.json'} must hold objects with a path; fetch the encoder again")
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if set(kinds) - {"Transformer", "Pooling", "Normalize"} or kinds[0] != "Transformer":
        raise UnsupportedModulesError(
            f"encoder {directory} has the modules {', '.join(kinds)}; use SentenceTransformerEncoder"
        )
    folders = {kind: directory / module.get("path", "") for kind, module in zip(kinds, modules, strict=True)}
    pooling = _pooling(_read(folders["Pooling"] / "config.json", dict), directory) if "Pooling" in kinds else "mean"
    stated = folders["Transformer"] / "sentence_bert_config.json"
    length = _read(stated, dict).get("max_seq_length")
    try:
        return EncoderSettings(pooling, "Normalize" in kinds, length)
    except UserError as error:
        raise UserError(f"{stated}: {error}; fetch the encoder again") from error


def _pooling(config: dict[str, Any], directory: Path) -> str:
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode") and value is True]
    if isinstance(config.get("pooling_mode"), str):  # newer sentence-transformers state one name
        chosen = [f"pooling_mode_{config['pooling_mode']}_{'token' if config['pooling_mode'] == 'cls' else 'tokens'}"]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise UnsupportedModulesError(
            f"encoder {directory} pools by {', '.join(chosen) or 'nothing'}; use SentenceTransformerEncoder"
        )
    return _POOLINGS[chosen[0]]


def _read(path: Path, kind: type[T]) -> T:
    """The list or object in a file; an empty one where there is no file."""
    value = read_json(path) if user_path(path).exists() else kind()
    if not isinstance(value, kind):
        raise UserError(f"{path} must hold a {kind.__name__}, not {type(value).__name__}; fetch the encoder again")
    return value
