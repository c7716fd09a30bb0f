"""Metrics of one output against one item. Pure; no model, no files."""
