"""Indexes in Milvus: `milvus:` addresses wherever an index is named, and `selfrag index push`."""
