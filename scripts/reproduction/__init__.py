"""Self-RAG's Table 2 again: its rows as data, the commands that run one, and how far ours is from it."""
