"""Files of an encoder: where they are, what they state of pooling, how they are run, a fingerprint of the weights."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from selfrag.common.checks import check_choice, check_int
from selfrag.common.errors import UserError, require
from selfrag.common.pretrained import (
    best_device,
    fast_format,
    load,
    own_code_refused,
    quiet,
    wants_own_code,
)
from selfrag.common.reading import read_json, user_path

T = TypeVar("T", list[Any], dict[str, Any])
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_NEW_POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
PROBE = "The quick brown fox, naïve café 北京 1234567890 jumps\tover #42!"
_SAMPLES = 512  # values of a tensor that are looked at; fine-tuning moves all of them
_PRECISIONS = ("float32", "bfloat16", "auto")
_CPU_BATCH = 1024
# tokens of a batch; on a CPU its numbers are to stay in the cache of a core
_GPU_BATCH = 65_536
_LOADING = Lock()
_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model.bin"]


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """How token vectors become a text vector."""

    pooling: str = "mean"  # `mean` over the tokens, or `cls` for the first
    normalize: bool = False  # scale vectors to length 1
    # texts are cut at this many tokens; None for the model's own limit
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, _POOLINGS.values())
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens)

    def limited(self, limit: int) -> EncoderSettings:
        """Return the settings with at most so many tokens."""
        return replace(self, max_tokens=int(min(self.max_tokens or limit, limit)))


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Where and how an encoder computes.

    Attributes:
        device: Device of the encoder: cpu, cuda, or auto for a GPU if there is one.
        precision: Number format of the encoder: float32, bfloat16, or auto for bfloat16 where the device
            multiplies in it. An index records it.
        batch_tokens: Tokens that go through the encoder at once, padding included; by default 1024 on a CPU, 65536 on
            a GPU.
    """

    device: str = "cpu"
    precision: str = "float32"
    batch_tokens: int | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether the CPU in float32 is asked for, or what is best where there is no torch for anything else."""
        automatic = () if importlib.util.find_spec("torch") else ("auto",)
        return self.device in ("cpu", *automatic) and self.precision in (
            "float32",
            *automatic,
        )

    def resolve(self) -> EncoderOptions:
        """Return the options with `auto` and None replaced by what this machine has.

        Raises:
            UserError: there is no such device or precision, or no torch.
        """
        check_choice("precision", self.precision, _PRECISIONS)
        torch = require("torch", extra="cpu")
        device = best_device() if self.device == "auto" else self.device
        try:
            torch.empty(0, device=device)
        # No such device; torch built without CUDA; a kind of device that torch only names.
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"device={device!r:.40} cannot be used ({reason}); give cpu or auto"
            ) from error
        precision = self.precision
        if precision == "auto":
            precision = fast_format(device).name
        return EncoderOptions(device, precision, self.tokens_of_batch(device))

    def tokens_of_batch(self, device: str) -> int:
        """Return how many tokens go through the encoder at once."""
        tokens = self.batch_tokens
        if tokens is None:
            tokens = _CPU_BATCH if device.startswith("cpu") else _GPU_BATCH
        check_int("batch_tokens", tokens)
        return tokens


class UnsupportedModulesError(UserError):
    """The directory describes modules beyond transformer, pooling and normalisation."""


def stated_settings(directory: Path) -> EncoderSettings:
    """Return what `modules.json` and its neighbours say; without them mean pooling, as Contriever has it."""
    modules = _read(directory / "modules.json", list)
    if not modules:
        return EncoderSettings()
    if not all(
        isinstance(module, dict) and isinstance(module.get("path", ""), str)
        for module in modules
    ):
        raise UserError(
            f"{directory / 'modules.json'} must hold objects with a path; fetch the encoder again"
        )
    folders = {
        str(module.get("type", "")).rsplit(".", 1)[-1]: directory
        / module.get("path", "")
        for module in modules
    }
    if (
        set(folders) - {"Transformer", "Pooling", "Normalize"}
        or next(iter(folders)) != "Transformer"
    ):
        raise UnsupportedModulesError(
            f"encoder {directory} has the modules {', '.join(folders)}; use SentenceTransformerEncoder"
        )
    pooling = "mean"
    if "Pooling" in folders:
        pooling = _pooling(_read(folders["Pooling"] / "config.json", dict), directory)
    stated = folders["Transformer"] / "sentence_bert_config.json"
    length = _read(stated, dict).get("max_seq_length")
    try:
        return EncoderSettings(pooling, "Normalize" in folders, length)
    except UserError as error:
        raise UserError(f"{stated}: {error}; fetch the encoder again") from error


def _pooling(config: dict[str, Any], directory: Path) -> str:
    """Return the name of the one pooling that is chosen, by a switch or, in newer files, by its name."""
    chosen = [
        name
        for name, value in config.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    if isinstance(config.get("pooling_mode"), str):
        chosen = [_NEW_POOLINGS.get(config["pooling_mode"], config["pooling_mode"])]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        raise UnsupportedModulesError(
            f"encoder {directory} pools by {', '.join(chosen) or 'nothing'}; use SentenceTransformerEncoder"
        )
    return _POOLINGS[chosen[0]]


def _read(path: Path, kind: type[T]) -> T:
    """Return the list or object in a file; an empty one where there is no file."""
    value = read_json(path) if user_path(path).exists() else kind()
    if not isinstance(value, kind):
        raise UserError(
            f"{path} must hold a {kind.__name__}, not {type(value).__name__}; fetch the encoder again"
        )
    return value


def encoder_directory(source: str | Path) -> Path:
    """Return the model directory itself, or the cached snapshot of a hub name (downloaded once)."""
    path = user_path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is no encoder directory: it has no config.json")
        return path
    if (
        path.is_absolute()
        or str(source).startswith(".")
        or str(source).count("/") > 1
        or path.exists()
    ):
        raise UserError(f"no encoder directory {source}")
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            str(source),
            allow_patterns=_PATTERNS,
            ignore_patterns=["onnx/*", "openvino/*"],
        )
    except (
        Exception
    ) as error:  # the hub client raises many unrelated types: network, HTTP, validation
        raise UserError(
            f"no encoder {source!r}: not a directory here, and the hub says: {str(error)[:200]}"
        ) from error
    return Path(folder)


def canonical_source(source: str | Path) -> str:
    """Return one spelling for all that a user may write: a hub name, or the folder without links.

    The folder of the snapshot that the hub's cache gives for a name is spelled as that name.
    """
    path = user_path(source)
    if not path.is_dir():
        return str(source)
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = path.resolve()
    repository = folder.parent.parent
    if repository.parent == Path(HF_HUB_CACHE).resolve() and repository.name.startswith(
        "models--"
    ):
        newest = repository / "refs" / "main"
        if (
            newest.is_file()
            and newest.read_text(encoding="utf-8").strip() == folder.name
        ):
            return repository.name.removeprefix("models--").replace("--", "/")
    return str(folder)


def short_name(source: str) -> str:
    """Return the last two parts of a directory or hub name: many model directories are all called `model`."""
    return "/".join(Path(source).parts[-2:])


@contextmanager
def loading(source: str | Path) -> Iterator[None]:
    """Load in this block: one encoder at a time, and whatever a library makes of bad files is one line."""
    try:
        with _LOADING:  # transformers sets the default type of tensors and its logging for the whole process
            yield
    except UserError:
        raise
    except Exception as error:  # of any type: division by zero, a missing attribute, a tokenizer's bare Exception
        if wants_own_code(error):
            raise own_code_refused(source) from error
        raise UserError(
            f"encoder {source} cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
        ) from error


def load_model(directory: Path, source: str | Path) -> tuple[Any, Any]:
    """Return the tokenizer and the model of a directory; weights that are missing or have no place are refused."""
    import torch

    with quiet():
        tokenizer = load("AutoTokenizer", directory)
        # In float32 first: the fingerprint must not depend on the precision that is asked for.
        model, report = load(
            "AutoModel", directory, dtype=torch.float32, output_loading_info=True
        )
    missing = sorted(
        key for key in report["missing_keys"] if not key.startswith("pooler.")
    )
    if missing:
        raise UserError(
            f"encoder {source} lacks weights ({missing[0]} and {len(missing) - 1} more); fetch it again"
        )
    parts = {name for name, _ in model.named_children()} - {"pooler"}
    unexpected = [
        key for key in sorted(report["unexpected_keys"]) if "position_ids" not in key
    ]
    unused = [key for key in unexpected if key.split(".")[0] in parts]
    if unused:
        raise UserError(
            f"encoder {source} holds weights that its config.json has no place for ({unused[0]} and "
            f"{len(unused) - 1} more); fetch it again"
        )
    return tokenizer, model.eval()


def parameters_fingerprint(module: Any, tokenizer: Any, settings: str) -> str:
    """Return the fingerprint of a module of torch, with its tokenizer and its settings; see `weights_fingerprint`."""
    import torch

    samples = {}
    for name, tensor in module.named_parameters():
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // _SAMPLES)].to("cpu", torch.float32)
        samples[name] = (tuple(tensor.shape), sample.numpy())
    return _fingerprint(samples, list(tokenizer(PROBE)["input_ids"]), settings)


def weights_fingerprint(
    weights: Mapping[str, NDArray[np.float32]], probe_ids: list[int], settings: str
) -> str:
    """Return 16 hex digits from a sample of every weight, the ids of the text `PROBE` and the settings."""
    samples = {}
    for name, values in weights.items():
        flat = values.reshape(-1)
        samples[name] = (values.shape, flat[:: max(1, flat.size // _SAMPLES)])
    return _fingerprint(samples, probe_ids, settings)


def _fingerprint(
    samples: Mapping[str, tuple[tuple[int, ...], NDArray[np.float32]]],
    probe_ids: list[int],
    settings: str,
) -> str:
    """Return the fingerprint of samples with the shapes of their weights.

    Names of weights do not count, since they change between versions of transformers; nor does a BERT pooler, which
    mean pooling does not use and which loading fills at random where a checkpoint has none.
    """
    parts = []
    for name, (shape, sample) in samples.items():
        if "pooler." not in name:
            content = repr(shape).encode() + sample.tobytes()
            parts.append(hashlib.blake2b(content).hexdigest())
    text = "\n".join([*sorted(parts), repr(probe_ids), settings])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
