"""A checkpoint on disk: every reflection token one id of its own, with rows that were trained. Loads no model.

Trained is told from untrained by the rows alone: rows that were never trained are all equal, zero, or far longer or
shorter than the rows of ordinary tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval import pretrained
from selfrag.cli.checks.finding import Finding
from selfrag.errors import UserError, VocabularyError
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary

_A_CHECKPOINT = "give a folder with a Hugging Face checkpoint"
_USE_ANOTHER = "use a Self-RAG checkpoint such as selfrag/selfrag_llama2_7b, or train this model with selfrag.training"
_COPY_AGAIN = "copy or download the checkpoint again"
_MATRICES = ("embed_tokens.weight", "wte.weight", "lm_head.weight", "embed_out.weight")
_NORM_FACTOR = 4.0  # trained rows stay within this factor of the range of ordinary rows


def check_checkpoint(name: str, folder: Path | None) -> Iterator[Finding]:
    """Tokenizer and rows of a checkpoint.

    Args:
        name: what the user called it.
        folder: where its files are; None if only its tokenizer can be had.
    """
    try:
        tokenizer = pretrained.load("AutoTokenizer", str(folder or name), local_files_only=folder is not None)
    except (
        UserError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        yield Finding("tokenizer", f"{name}: {_first_line(error)}", "broken", _A_CHECKPOINT)
        return
    try:
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
    except VocabularyError as error:
        yield Finding("reflection tokens", str(error), "broken", _USE_ANOTHER)
        return
    ids = [vocabulary.ids[token] for token in TOKENS]
    yield Finding("reflection tokens", f"all {len(ids)} are single, distinct ids ({min(ids)}..{max(ids)})")
    if folder is None:
        yield Finding("rows", f"not checked: the weights of {name} are not on this machine", "note")
        return
    yield Finding("number format", str(pretrained.number_format("auto", folder, pretrained.best_device())))
    yield from _check_architecture(folder)
    try:
        yield from _check_rows(folder, ids)
    except Exception as error:  # safetensors and torch have errors of their own for a damaged file
        yield Finding("rows", f"the weights cannot be read: {_first_line(error)}", "broken", _COPY_AGAIN)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _check_architecture(folder: Path) -> Iterator[Finding]:
    """Whether transformers knows the kind of model; engines refuse it otherwise."""
    try:
        pretrained.load("AutoConfig", str(folder), local_files_only=True)
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield Finding("model", f"config.json: {_first_line(error)}", "broken", _A_CHECKPOINT)


def _check_rows(folder: Path, ids: list[int]) -> Iterator[Finding]:
    seen = False
    for name, tensor in _matrices(folder):
        seen = True
        rows = tensor.shape[0]
        if max(ids) >= rows:
            detail = f"{name} has {rows} rows, token {max(ids)} needs more: the model was not resized"
            yield Finding("rows", detail, "broken", _USE_ANOTHER)
            continue
        yield _judge(name, tensor, ids)
    if not seen and not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        yield Finding("rows", f"there are no weights in {folder}", "broken", _COPY_AGAIN)
    elif not seen:
        yield Finding("rows", f"not checked: no embedding matrix found in {folder}", "note")


def _judge(name: str, tensor: Any, ids: list[int]) -> Finding:
    import torch

    new = tensor[ids].float()
    usual = tensor[: min(ids)].float().norm(dim=1)
    low, high = torch.quantile(usual[:: max(1, len(usual) // 10_000)], torch.tensor([0.01, 0.99])).tolist()
    norms = new.norm(dim=1)
    detail = f"{name}: norms {norms.min():.2f}..{norms.max():.2f}, ordinary rows {low:.2f}..{high:.2f}"
    if torch.pdist(new).min() < 1e-6 * max(high, 1e-6):
        detail += "; some reflection tokens share one row: they were never trained"
        return Finding("rows", detail, "broken", _USE_ANOTHER)
    if norms.min() < low / _NORM_FACTOR or norms.max() > high * _NORM_FACTOR:
        return Finding("rows", f"{detail}; far outside: these rows look untrained", "broken", _USE_ANOTHER)
    return Finding("rows", f"{detail}, all different")


def _matrices(folder: Path) -> Iterator[tuple[str, Any]]:
    """Input and output embeddings, from safetensors or from older weight files; tied ones come once."""
    for path in sorted(folder.glob("*.safetensors")):
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a mapping
                if name.endswith(_MATRICES):
                    yield name, weights.get_tensor(name)
    if any(folder.glob("*.safetensors")):
        return
    for path in sorted(folder.glob("pytorch_model*.bin")):
        import torch

        for name, tensor in torch.load(path, map_location="cpu", mmap=True, weights_only=True).items():
            if name.endswith(_MATRICES):
                yield name, tensor
