"""The model a user named: found where, and is it usable. Downloads nothing that is large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfrag.cli.checks.checkpoint import check_checkpoint
from selfrag.cli.checks.finding import Finding
from selfrag.errors import UserError


def check_model(name: str) -> Iterator[Finding]:
    """Find the checkpoint behind a name and look at its reflection tokens."""
    try:
        folder = _folder(name)
    except UserError as error:
        yield Finding("model", str(error), "broken")
        return
    if name == "demo" and folder is None:
        yield Finding(
            "model", "the demo model is not there yet", "note", "`selfrag demo` downloads and prepares it once"
        )
        return
    yield Finding("model", str(folder) if folder else f"{name} is not on this machine; only its tokenizer is looked at")
    yield from check_checkpoint(name, folder)


def _folder(name: str) -> Path | None:
    """Where the files of a model are, None if they are not on this machine."""
    if name == "demo":
        from selfrag.demo.model import checkpoint_path

        path = checkpoint_path()
        return path if path.exists() else None
    path = Path(name).expanduser()
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
