"""Models that search by writing tags, as Search-R1 and its relatives: decoder, model, server and evaluation.

Registers formats such as `search-r1` (`selfrag.formats`), and systems to evaluate (`selfrag.systems`).
Page: `docs/guides/search-tags.md`.
"""
