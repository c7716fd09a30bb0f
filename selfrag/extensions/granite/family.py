"""The published adapters as one of the families that `selfrag.intrinsics` knows by entry points."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfrag.extensions.granite import published
from selfrag.extensions.granite.chat import ChatCodec
from selfrag.extensions.granite.registry import codec_of_file, switch_codecs
from selfrag.interface import PublishedAdapter


class GraniteFamily:
    """Implements `selfrag.intrinsics.families.AdapterFamily`."""

    def listed(self) -> Iterator[str]:
        """Yield a line for each repository and checkpoint."""
        return published.listed()

    def published(self, intrinsic: str) -> dict[str, PublishedAdapter]:
        """Return the plain LoRA adapters of an intrinsic by the name of the base model."""
        return published.published(intrinsic)

    def adapter_codec(self, folder: Path, intrinsic: str) -> ChatCodec | None:
        """Return the codec that an adapter's `io.yaml` describes; None without such a file."""
        file = folder / "io.yaml"
        return codec_of_file(file, intrinsic) if file.is_file() else None

    def checkpoint_codecs(self, folder: Path) -> dict[str, ChatCodec]:
        """Return the codecs of the adapters inside a Granite Switch checkpoint, by intrinsic."""
        return switch_codecs(folder)


FAMILY = GraniteFamily()
