"""What every kind of encoder does when it is loaded: find the folder, name faults in one line, tell two texts apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import numpy as np

from retrieval.encoders.card import Encoder, checked_encode
from retrieval.errors import UserError
from retrieval.pretrained import own_code_refused, wants_own_code
from retrieval.reading import user_path

# Alike in the number of words and characters: to a tokenizer that knows no word of them they are one text.
_PROBES = ("river 17 北京 дом", "stone 42 東雨 мир")
_LOADING = Lock()


def encoder_directory(source: str | Path) -> Path:
    """The model directory itself, or the cached snapshot of a hub name (downloaded once).

    Raises:
        UserError: neither.
    """
    path = user_path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is no encoder directory: it has no config.json")
        return path
    if path.is_absolute() or str(source).startswith(".") or str(source).count("/") > 1 or path.exists():
        raise UserError(f"no encoder directory {source}")
    from huggingface_hub import snapshot_download

    try:
        wanted = ["*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model.bin"]
        return Path(snapshot_download(str(source), allow_patterns=wanted, ignore_patterns=["onnx/*", "openvino/*"]))
    except Exception as error:  # the hub client raises many unrelated types: network, HTTP, validation
        raise UserError(f"no encoder {source!r}: not a directory here, and the hub says: {str(error)[:200]}") from error


def canonical_source(source: str | Path) -> str:
    """One spelling for all that a user may write for an encoder: a hub name, or the folder without links.

    The folder of the snapshot that the hub's cache gives for a name is spelled as that name.
    """
    path = user_path(source)
    if not path.is_dir():
        return str(source)
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = path.resolve()
    repository = folder.parent.parent
    if repository.parent == Path(HF_HUB_CACHE).resolve() and repository.name.startswith("models--"):
        newest = repository / "refs" / "main"
        if newest.is_file() and newest.read_text(encoding="utf-8").strip() == folder.name:
            return repository.name.removeprefix("models--").replace("--", "/")
    return str(folder)


def short_name(source: str) -> str:
    """The last two parts of a directory or hub name: many model directories are all called `model`."""
    return "/".join(Path(source).parts[-2:])


@contextmanager
def loading(source: str | Path) -> Iterator[None]:
    """Load in this block: one encoder at a time, and whatever a library makes of bad files is one line.

    Raises:
        UserError: the files cannot be used.
    """
    try:
        with _LOADING:  # transformers sets the default type of tensors and its logging for the whole process
            yield
    except UserError:
        raise
    except Exception as error:  # of any type: division by zero, a missing attribute, a tokenizer's bare Exception
        if wants_own_code(error):
            raise own_code_refused(source) from error
        raise UserError(f"encoder {source} cannot be loaded: {type(error).__name__}: {str(error)[:300]}") from error


def check_encoder(encoder: Encoder, token_ids: Callable[[Sequence[str]], Sequence[Sequence[int]]]) -> None:
    """Encode two texts that differ.

    Args:
        encoder: just loaded.
        token_ids: what it reads of each of some texts.

    Raises:
        UserError: both are the same to it, or a vector is of no use.
    """
    name = encoder.card.name
    first, second = map(list, token_ids(_PROBES))
    if first == second:
        raise UserError(
            f"encoder {name!r} reads different texts as the same tokens: its tokenizer files are missing or of another "
            "model, or it cuts texts too short; fetch it again"
        )
    vectors = checked_encode(encoder, _PROBES, len(_PROBES))
    largest = np.abs(vectors).max(axis=1)
    if not largest.all() or np.abs(vectors[0] - vectors[1]).max() <= 1e-5 * largest.max():
        raise UserError(
            f"encoder {name!r} gives {'zeros' if not largest.all() else 'the same vector'} for different texts: "
            "its weights are damaged; fetch it again"
        )
