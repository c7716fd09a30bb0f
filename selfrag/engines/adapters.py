"""LoRA adapters on engines: which ones vLLM can serve, and where an activated LoRA (arXiv 2504.12397) begins."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.common.errors import EngineError, UserError
from selfrag.common.plugins import registered
from selfrag.common.reading import read_json, user_path
from selfrag.loading import CALIBRATOR, WEIGHTS, fetch_snapshot

MERGE = "export a merged checkpoint instead"
TENSORS = "adapter_model.safetensors"

# Ranks for which vLLM has kernels (vllm/config/lora.py).
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

# Initialisations that leave the base weights as they are (vllm/lora/peft_helper.py).
PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")


@dataclass(frozen=True, slots=True)
class VLLMAdapter:
    """An adapter that vLLM can serve."""

    name: str  # what requests call it
    path: Path  # directory with `adapter_config.json` and `adapter_model.safetensors`
    rank: int  # largest rank of any of its matrices


def read_adapter(name: str, path: str | Path) -> VLLMAdapter:
    """Check a directory that PEFT saved.

    Raises:
        EngineError: files are missing or broken, or vLLM could not serve the adapter as it was trained.
    """
    directory = user_path(path)
    config = read_config(name, directory)
    reason = unsupported(config) or _foreign_tensors(directory)
    if reason is not None:
        raise EngineError(f"adapter {name!r} cannot be served by vLLM: {reason}")
    return VLLMAdapter(name, directory, _rank(config))


def is_activated(path: str | Path) -> bool:
    """Return whether a directory holds an activated LoRA; False also where nothing can be read."""
    try:
        return bool(read_config("", user_path(path)).get("alora_invocation_tokens"))
    except UserError:
        return False


def unsupported(config: Mapping[str, Any]) -> str | None:
    """Return why vLLM cannot serve an adapter with this PEFT configuration, or None."""
    kind = config.get("peft_type", "LORA")
    init = config.get("init_lora_weights", True)
    rank = _rank(config)
    if config.get("alora_invocation_tokens"):
        return "it is an activated LoRA (aLoRA), which vLLM does not know; use the transformers engine or a plain LoRA"
    other_biases = config.get("lora_bias") or config.get("bias", "none") != "none"
    changes_base = isinstance(init, str) and init.lower() not in PLAIN_INITS
    rules = {
        f"it is of type {kind}, not LORA": kind != "LORA",
        f"it holds whole modules ({config.get('modules_to_save')})": config.get(
            "modules_to_save"
        ),
        "it holds trained token rows (trainable_token_indices)": config.get(
            "trainable_token_indices"
        ),
        "it is a DoRA": config.get("use_dora"),
        "it holds trained biases": other_biases,
        "it replicates layers": config.get("layer_replication"),
        "it is block-diagonal (BD-LoRA)": config.get("use_bdlora"),
        "it is a QALoRA": config.get("use_qalora"),
        f"its initialisation {init!r} changes the base weights": changes_base,
    }
    for reason, applies in rules.items():
        if applies:
            return f"{reason}; {MERGE}"
    if not 1 <= rank <= RANKS[-1]:
        return f"its rank {rank} is not between 1 and {RANKS[-1]}"
    return None


def max_lora_rank(rank: int) -> int:
    """Return the smallest rank vLLM has kernels for that holds `rank`."""
    return next(size for size in RANKS if size >= rank)


def _rank(config: Mapping[str, Any]) -> int:
    ranks = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    return max([0, *(rank for rank in ranks if isinstance(rank, int))])


def read_config(name: str, directory: Path) -> dict[str, Any]:
    """Read the PEFT configuration of an adapter directory."""
    file = directory / "adapter_config.json"
    if not file.exists():
        raise EngineError(
            f"adapter {name!r}: {file} is missing; give a directory that PEFT saved"
        )
    try:
        config = read_json(file)
    except UserError as error:
        raise EngineError(f"adapter {name!r}: {error}") from error
    if not isinstance(config, dict):
        raise EngineError(f"adapter {name!r}: {file} is not a JSON object")
    return config


def _foreign_tensors(directory: Path) -> str | None:
    """Return why vLLM cannot serve the tensors of an adapter, or None.

    Of tensors beside LoRA pairs it ignores copies of embedding matrices and dies of any other.
    """
    from safetensors import SafetensorError, safe_open

    file = directory / TENSORS
    if not file.is_file():
        return f"{file} is missing; save the adapter with safe_serialization=True"
    try:
        with safe_open(str(file), framework="np") as tensors:
            names = list(tensors.keys())
    except (OSError, SafetensorError) as error:
        return f"{file} cannot be read ({error})"
    pairs = (
        ".lora_A.weight",
        ".lora_B.weight",
        ".lora_embedding_A",
        ".lora_embedding_B",
    )
    foreign = [name for name in names if not name.endswith(pairs)]
    if foreign:
        return f"it holds weights beside the LoRA pairs ({foreign[0]}); {MERGE}"
    if not names:
        return "it holds no weights"
    return None


def invocation_start(prompt: Sequence[int], invocation: Sequence[int]) -> int | None:
    """Return the position of the last occurrence of `invocation` in `prompt`, or None if there is none."""
    invocation, size = tuple(invocation), len(invocation)
    for start in range(len(prompt) - size, -1, -1):
        if (
            prompt[start] == invocation[0]
            and tuple(prompt[start : start + size]) == invocation
        ):
            return start
    return None


def inactive_reason(
    adapter: str, prompt: Sequence[int], invocation: Sequence[int]
) -> str | None:
    """Return one line on why an adapter would stay switched off in this prompt, or None if it switches on."""
    if invocation_start(prompt, invocation) is not None:
        return None
    return (
        f"the prompt lacks the invocation tokens {list(invocation)} of the activated LoRA {adapter!r},"
        " so the base model alone would answer; encode it with the dialect the adapter was trained for"
    )


def resolve_adapter(name_or_path: str | Path) -> Path:
    """Return the directory of a LoRA adapter: a local one, or one on the hub, which may be a folder of a repository.

    Args:
        name_or_path: a directory, `owner/name`, or `owner/name/folder/of/the/adapter` such as
            `ibm-granite/granite-3.3-8b-rag-agent-lib/answerability_prediction_lora`. `owner/name@COMMIT/...` pins it.

    Raises:
        UserError: there is no such directory, the hub has or gives no such adapter, or a file is not what the hub
            promised.
    """
    path = user_path(name_or_path)
    parts = str(name_or_path).split("/")
    local = (
        isinstance(name_or_path, Path)
        or len(parts) < 2
        or parts[0] in ("", ".", "..", "~")
        or not all(parts)
    )
    if path.is_dir() or local:
        return path  # the engine says what is wrong with it
    repository = "/".join(parts[:2])
    folder = "/".join(parts[2:])
    repository, _, revision = repository.partition("@")
    patterns = [f"{folder}/*"] if folder else None
    snapshot = fetch_snapshot(
        repository,
        f"adapter {name_or_path} is no directory here and",
        "",
        revision=revision or None,
        allow_patterns=patterns,
    )
    if not (snapshot / folder / "adapter_config.json").is_file():
        raise UserError(
            f"{repository} holds no adapter in {folder or 'its top folder'}; name the adapter's own folder"
        )
    for file in (snapshot / folder).iterdir():
        if file.is_file() and not _has_its_hash(file.resolve()):
            raise UserError(
                f"{file} is damaged: it is not what {repository} promised; delete it and try again"
            )
    return snapshot / folder


def _has_its_hash(blob: Path) -> bool:
    """Return whether a file of the hub's cache has the hash that it is named by: SHA-256, or that of a Git blob."""
    content = blob.read_bytes()
    if len(blob.name) == 64:
        return hashlib.sha256(content).hexdigest() == blob.name
    git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return len(blob.name) != 40 or git.hexdigest() == blob.name


def shipped_adapters(model: str | Path) -> dict[str, Path]:
    """Return the directories of the adapters that come with a registered model, by intrinsic; else none."""
    weights = shipped_weights(model)
    return {
        intrinsic: folder
        for intrinsic, folder in _shipped(model).items()
        if intrinsic not in weights or (folder / "adapter_config.json").is_file()
    }


def shipped_weights(model: str | Path) -> dict[str, Path]:
    """Return the files of what was learned about the tokens of a registered model, by intrinsic."""
    weights: dict[str, Path] = {}
    for intrinsic, folder in _shipped(model).items():
        for file in (folder / WEIGHTS, folder / CALIBRATOR):
            if file.is_file():
                weights[intrinsic] = file
    return weights


def _shipped(model: str | Path) -> dict[str, Path]:
    folders = registered("selfrag.adapters", model)
    return {} if folders is None else folders()
