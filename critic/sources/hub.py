"""A data set of the Hugging Face hub, or of a local directory of that kind, as streamed rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from retrieval.errors import UserError


def open_hub(name: str, configuration: str | None = None, split: str = "train") -> Iterable[Mapping[str, Any]]:
    """Rows of one split, fetched while they are read.

    Args:
        name: `owner/name`, or a directory of data files.
        configuration: such as `nq` of `facebook/kilt_tasks`, where the data set has several.
        split: such as `train`.

    Raises:
        UserError: no such data set, configuration or split, or the hub cannot be reached.
    """
    import datasets

    try:
        return cast(
            Iterable[Mapping[str, Any]], datasets.load_dataset(name, configuration, split=split, streaming=True)
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:  # RuntimeError: it has code
        raise UserError(f"hf:{name}: {error}") from error
