"""The published adapters as one of the families that `selfrag.intrinsics` knows by entry points."""

from __future__ import annotations

from pathlib import Path

from selfrag.extensions.granite import published
from selfrag.extensions.granite.chat import ChatCodec
from selfrag.extensions.granite.registry import codec_of_file, switch_codecs


class GraniteFamily:
    """Implements `selfrag.intrinsics.families.AdapterFamily`."""

    listed = staticmethod(published.listed)
    published = staticmethod(published.published)
    checkpoint_codecs = staticmethod(switch_codecs)

    @staticmethod
    def adapter_codec(folder: Path, intrinsic: str) -> ChatCodec | None:
        """Return the codec that an adapter's `io.yaml` describes; None without such a file."""
        file = folder / "io.yaml"
        return codec_of_file(file, intrinsic) if file.is_file() else None


FAMILY = GraniteFamily()
