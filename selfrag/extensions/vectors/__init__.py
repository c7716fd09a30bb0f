"""Vectors that others encoded, as they are published, in an index; and the export of an index to Parquet.

Registers readers of vectors (`selfrag.vectors`) and `selfrag index export` (`selfrag.index`).
Page: `docs/guides/retrieval.md`.
"""
