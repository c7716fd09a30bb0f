"""Search by a server: SearXNG, Google, Elasticsearch, and the search servers of Search-R1 and FlashRAG.

Registers addresses that begin with `http`, `https`, `searxng` and `google`, in the group `selfrag.retrievers`.
Page: `docs/guides/retrieval.md`.
"""
