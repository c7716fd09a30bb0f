"""The default model, encoder and corpus: what `SelfRAG.from_pretrained("demo")` runs on.

Everything comes from the package index once, is verified against a checksum and kept in the user's cache directory.
"""

from __future__ import annotations

from selfrag.demo.model import base_path, encoder_path, index_path, model_path

__all__ = ["base_path", "encoder_path", "index_path", "model_path"]
