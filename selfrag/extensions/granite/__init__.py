"""Granite and mellea: the wire formats of their published adapters, and where these adapters are.

Registers dialects (`selfrag.dialects`), the catalogue (`selfrag.adapter_families`) and Granite Switch
(`selfrag.architectures`). Page: `docs/guides/intrinsics/granite.md`.
"""
