"""Environment variables for a while: set, then put back as they were. Knows no engine.

vLLM is configured through the environment, read while an engine is built. A library must not leave its settings behind
for other code of the same process, nor for its child processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables inside a `with` block and restore them afterwards, whatever the block did to them.

    Args:
        values: name to value; None removes the variable inside the block.
    """
    before = {name: os.environ.get(name) for name in values}
    try:
        _assign(values)
        yield
    finally:
        _assign(before)


def _assign(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
