"""Refuses a model, an index or a server that is not there, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.request import getproxies, proxy_bypass

from selfrag.common.checks import check_url
from selfrag.common.errors import EngineError
from selfrag.common.plugins import names
from selfrag.loading import check_index, local_model, model_address

_SECONDS = 5.0
"""For a server to take a connection."""


def check_sources(options: Mapping[str, Any]) -> None:
    """Refuse a model, an index or a server that is not there, before anything is loaded."""
    values = {name: str(value) for name, value in options.items() if value}
    if values.keys() & {"--dry-run", "--print-config"}:
        return
    for name in ("--index", "--knowledge"):
        if name in values and "--watch" not in values:  # which builds the index
            check_index(values[name])
    urls = [values.get("--engine", "")]
    is_named = not values.keys() & {"--endpoint", "--url"}  # a name at that address
    for name in ("--model", "--base"):
        if name in values and is_named and values[name] not in names("selfrag.models"):
            address = model_address(values[name])
            if address is None:
                local_model(values[name])
            else:
                urls.append(address[1])
    # a run that is continued may have nothing left to ask
    if _is_begun(values.get("--out")):
        return
    for url in urls:
        if url.startswith(("http://", "https://")):
            check_answers(url)


def check_answers(url: str) -> None:
    """Refuse an address at which nothing listens; behind a proxy nothing is tried.

    Raises:
        EngineError: no server is there.
    """
    parts = check_url(url)
    host = str(parts.hostname)
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        create_connection((host, port), timeout=_SECONDS).close()
    except OSError as error:
        shown = url.rpartition("@")[2]  # a password is not printed
        raise EngineError(
            f"no server at {shown:.200} ({error.strerror or error}); start it, or give another address"
        ) from error


def _is_begun(folder: str | None) -> bool:
    return folder is not None and any(Path(folder).glob("*"))
