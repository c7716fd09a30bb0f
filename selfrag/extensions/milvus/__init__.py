"""Indexes in Milvus.

Registers `milvus:` addresses wherever an index is named (`selfrag.remote_indexes`), and `selfrag index push`
(`selfrag.index`). Page: `docs/guides/scale.md`.
"""
