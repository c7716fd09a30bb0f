"""Which engine would be used here, and why. Builds none."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from selfrag.cli.checks.finding import Finding


def check_engine() -> Iterator[Finding]:
    """The engine that `SelfRAG.from_pretrained` would choose."""
    from selfrag.engines.select import choose_engine

    name, reason = choose_engine()
    # A vLLM that is installed and does not run is a fault; one that is not installed is a choice.
    broken = name != "vllm" and importlib.util.find_spec("vllm") is not None
    yield Finding("engine", f"{name}: {reason}", "broken" if broken else "ok")
