"""Refuses a model, an index or a server that is not there, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfrag.common.plugins import names
from selfrag.engines import check_answers
from selfrag.loading import check_index, local_model, model_address


def check_sources(options: Mapping[str, Any]) -> None:
    """Refuse a model, an index or a server that is not there, before anything is loaded."""
    given = {name: str(value) for name, value in options.items() if value}
    if given.keys() & {"--dry-run", "--print-config"}:
        return
    for name in ("--index", "--knowledge"):
        if name in given and "--watch" not in given:  # which builds the index
            check_index(given[name])
    urls = [given.get("--engine", "")]
    is_named = not given.keys() & {"--endpoint", "--url"}  # a name at that address
    for name in ("--model", "--base"):
        if name in given and is_named and given[name] not in names("selfrag.models"):
            address = model_address(given[name])
            if address is None:
                local_model(given[name])
            else:
                urls.append(address[1])
    # a run that is continued may have nothing left to ask
    if _is_begun(given.get("--out")):
        return
    for url in urls:
        if url.startswith(("http://", "https://")):
            check_answers(url)


def _is_begun(folder: str | None) -> bool:
    return folder is not None and any(Path(folder).glob("*"))
