"""Something that takes long to load, loaded only if it is asked for and closed at the end. Knows no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Closeable(Protocol):
    """An engine, or what holds one."""

    def close(self) -> None:
        """Free it."""
        ...


T = TypeVar("T", bound=Closeable)


@contextmanager
def on_demand(load: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Gives what loads at the first call, and the same thing at every further one.

    Args:
        load: called once at the most; what it raises comes out of that call.
    """
    loaded: list[T] = []

    def get() -> T:
        if not loaded:
            loaded.append(load())
        return loaded[0]

    try:
        yield get
    finally:
        for one in loaded:
            one.close()
