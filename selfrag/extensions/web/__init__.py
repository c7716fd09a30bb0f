"""Search by a server: SearXNG, Google, and the search servers of Search-R1 and FlashRAG."""
