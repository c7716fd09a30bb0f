"""What a server says beside its answer: how long to wait, and its own words for an error. Pure; sends nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from selfrag.untrusted import printable

LONGEST_MESSAGE = 300


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a `Retry-After` header asks to wait, given in seconds or as a date; 0 where it says nothing."""
    value = headers.get("Retry-After") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return seconds if 0 < seconds < float("inf") else 0.0


def server_message(content: bytes) -> str:
    """The server's own words in the body of an error, in one line. Untrusted."""
    data = _json(content)
    match data:
        case {"error": {"message": str(text)}} | {"error": str(text)} | {"detail": str(text)} | {"message": str(text)}:
            pass
        case _:
            text = content[: 4 * LONGEST_MESSAGE].decode("utf-8", "replace")
    return printable(" ".join(text[: 8 * LONGEST_MESSAGE].split()))[:LONGEST_MESSAGE] or "no reason given"


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
