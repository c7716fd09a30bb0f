"""The wire format of `POST /inference/v1/generate` of `vllm serve` (0.32): requests, replies and errors as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np

from selfrag.decoding.requests import Generate, Generated
from selfrag.engines.vllm import finish
from selfrag.untrusted import printable

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
MODELS = "/v1/models"

NO_VALUE = -9999.0


class BadReplyError(ValueError):
    """A reply that does not hold what was asked for; the text says what is wrong, in one line."""


def body(request: Generate, model: str, request_id: str, max_model_len: int) -> dict[str, Any]:
    """JSON of a greedy request.

    Args:
        request: checked against the limits before.
        model: served name of the base model or of an adapter.
        request_id: never used before.
        max_model_len: of the server.
    """
    sampling: dict[str, Any] = {
        "temperature": 0.0,
        "max_tokens": min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": False,
    }
    if request.watch_ids:
        spare = next(i for i in range(len(request.watch_ids) + 1) if i not in request.watch_ids)
        sampling["logprob_token_ids"] = [*request.watch_ids, spare]
        sampling["logprobs"] = len(request.watch_ids) + 1
    if request.stop_ids:
        sampling["stop_token_ids"] = list(request.stop_ids)
    if request.allowed_ids is not None:
        sampling["allowed_token_ids"] = list(request.allowed_ids)
    if request.constraint is not None:
        sampling["structured_outputs"] = request.constraint.as_structured_outputs()
    return {
        "request_id": request_id,
        "model": model,
        "token_ids": list(request.prompt_ids),
        "sampling_params": sampling,
        "stream": False,
    }


def engine_request_id(request_id: str) -> str:
    """The name under which the server's engine knows a request, which is what its abort route wants."""
    return f"generate-tokens-{request_id}"


def parse(content: bytes, request: Generate) -> Generated:
    """Our result for a reply to `request`.

    Raises:
        BadReplyError: it is not JSON, or lacks an id, a token or a number; nothing is ever filled in.
    """
    try:
        reply = json.loads(content)
    except ValueError:
        raise BadReplyError(f"the reply is not JSON: {content[:80]!r}") from None
    match reply:
        case {
            "choices": [{"token_ids": [*ids], "logprobs": {"content": [*rows]}, "finish_reason": str(reason)} as choice]
        }:
            pass
        case _:
            raise BadReplyError("the reply lacks choices[0] with token_ids, logprobs.content and finish_reason")
    if reason not in ("stop", "length"):
        raise BadReplyError(f"the server ended the request early ({reason})")
    if not ids or len(ids) != len(rows) or len(ids) > request.max_tokens:
        raise BadReplyError(f"{len(ids)} tokens with {len(rows)} log-probabilities for max_tokens={request.max_tokens}")
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise BadReplyError("token_ids holds something that is not a token id")
    sampled = tuple(_value(row, token) for row, token in zip(rows, ids, strict=True))
    return Generated(
        token_ids=tuple(ids),
        token_logprobs=sampled,
        watched=_watched(rows, request.watch_ids, masked=request.constraint is not None),
        finish=finish(request, ids, reason, eos=choice.get("stop_reason") is None),
        cached_tokens=_cached(reply),
    )


def _watched(rows: Sequence[Any], watch_ids: Sequence[int], *, masked: bool) -> Any:
    matrix = np.empty((len(rows), len(watch_ids)), dtype=np.float32)
    if not watch_ids:
        return matrix
    for position, row in enumerate(rows):
        entries = row.get("top_logprobs")
        if not isinstance(entries, list):
            raise BadReplyError(f"no watched log-probabilities at position {position}")
        values = {e["token_id"]: e for e in entries if isinstance(e, dict) and isinstance(e.get("token_id"), int)}
        for column, token in enumerate(watch_ids):
            if token not in values:
                raise BadReplyError(f"no log-probability of token id {token} at position {position}")
            matrix[position, column] = _value(values[token], token, masked=masked)
    return matrix


def _value(entry: Any, token: int, *, masked: bool = False) -> float:
    """The log-probability in `{"token_id", "logprob"}`, which must be of `token`; -inf only where tokens are masked."""
    match entry:
        case {"token_id": int(found), "logprob": float() | int() as value} if found == token:
            if masked and value <= NO_VALUE:
                return -math.inf
            if NO_VALUE < value <= 1e-3:
                return float(value)
            raise BadReplyError(f"log-probability {value} of token id {token} is no log-probability")
        case _:
            raise BadReplyError(f"no log-probability of token id {token}: {str(entry)[:80]}")


def _cached(reply: Mapping[str, Any]) -> int:
    """Cached prompt tokens; only a server started with `--enable-prompt-tokens-details` tells."""
    match reply:
        case {"usage": {"prompt_tokens_details": {"cached_tokens": int(count)}}}:
            return count
        case _:
            return 0


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
