"""The page of a server, and the same viewer as one file that opens a trace from disk."""

from __future__ import annotations


def served_page(model: str) -> tuple[str, str]:
    """The page, and its content security policy."""
    return f"<!DOCTYPE html><title>{model}</title>", "default-src 'none'"
