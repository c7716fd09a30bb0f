"""The model a user named: is it found, and can it be used. Downloads nothing that is large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from retrieval.reading import user_path
from selfrag.cli.checks.checkpoint import check_checkpoint
from selfrag.cli.checks.finding import Finding
from selfrag.cli.checks.fit import check_fit
from selfrag.errors import UserError


def check_model(name: str) -> Iterator[Finding]:
    """Find what is behind a name and look at its files."""
    try:
        folder = _folder(name)
    except UserError as error:
        yield Finding("model", str(error), "broken")
        return
    if folder is None and name == "demo":
        yield Finding("model", "not there yet", "note", "`selfrag demo` downloads and prepares it once")
        return
    if folder is not None and (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        yield from _check_adapter(folder)
        return
    yield Finding("model", str(folder) if folder else f"{name} is not on this machine; only its tokenizer is looked at")
    yield from check_checkpoint(name, folder)
    if folder is not None:
        yield from check_fit(folder)


def _folder(name: str) -> Path | None:
    """Where the files of a model are, None if they are not on this machine."""
    if name == "demo":
        from selfrag.demo.model import checkpoint_path

        path = checkpoint_path()
        return path if path.exists() else None
    path = user_path(name)
    if path.is_dir():
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"no folder {name}; give demo, a folder with a checkpoint, or a hub name such as owner/model")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError, OSError):
        return None


def _check_adapter(folder: Path) -> Iterator[Finding]:
    from selfrag.engines.lora import read_adapter

    try:
        adapter = read_adapter(folder.name, folder)
    except UserError as error:
        yield Finding("adapter", str(error), "broken")
        return
    detail = f"{folder} is a LoRA adapter of rank {adapter.rank} that vLLM can serve beside its base model"
    yield Finding("adapter", detail, "note", "name the base model here, and the adapter in adapters={..}")
