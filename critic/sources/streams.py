"""Rows that come from elsewhere, and may stop coming. Knows no schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from retrieval.errors import UserError


def unbroken(rows: Iterable[Mapping[str, Any]], name: str, then: str) -> Iterator[Mapping[str, Any]]:
    """The rows; a source that breaks off, such as a stream whose server has gone, is one line.

    Args:
        rows: a data set, a stream, or a list.
        name: of the source, for messages.
        then: what to do about it.

    Raises:
        UserError: reading failed.
    """
    import datasets
    import httpx
    import pyarrow as pa

    number, broken = 0, (OSError, httpx.HTTPError, pa.ArrowException, datasets.exceptions.DatasetsError)
    stream = iter(rows)
    while True:
        try:
            row = next(stream)
        except StopIteration:
            return
        except broken as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{name}: reading broke off after row {number} ({said:.200}); {then}") from error
        number += 1
        yield row
