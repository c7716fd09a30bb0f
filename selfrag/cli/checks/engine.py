"""Which engine would be used here, and why. Builds none."""

from __future__ import annotations

from collections.abc import Iterator

from selfrag.cli.checks.finding import Finding


def check_engine() -> Iterator[Finding]:
    """The engine that `SelfRAG.from_pretrained` would choose."""
    yield Finding("engine", "?")
