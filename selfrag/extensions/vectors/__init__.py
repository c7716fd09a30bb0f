"""Vectors that others encoded, as they are published, in an index; and the export of an index to Parquet."""
