"""Rivals of Self-RAG on the same engines: FLARE, IRCoT, Self-Ask, ITER-RETGEN, Adaptive-RAG, CRAG and others.

Registers systems to evaluate (`selfrag.systems`) and policies of `ask` and `serve` (`selfrag.formats`), one module a
method. Page: `docs/guides/adaptive.md`.
"""
