"""What goes over the wire to a `vllm serve`: requests and replies of its token route, and of its completions route.

Both take token ids, return the sampled ids, and the log-probability of every watched id at every position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfrag.decoding.requests import Generate, Generated
from selfrag.engines.client import BadReplyError, json_of
from selfrag.engines.vllm import finish

NO_VALUE = -9999.0
"""What vLLM writes in JSON for a log-probability of minus infinity."""


def _sampling(request: Generate, max_model_len: int) -> dict[str, Any]:
    """The fields of a greedy request that both routes have.

    vLLM cuts each position at `logprobs` entries beside the sampled one, so one id more than watched is asked for.
    """
    fields: dict[str, Any] = {
        "temperature": 0.0,
        "max_tokens": min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        "logprobs": 0,
    }
    if request.watch_ids:
        spare = next(i for i in range(len(request.watch_ids) + 1) if i not in request.watch_ids)
        fields["logprob_token_ids"] = [*request.watch_ids, spare]
        fields["logprobs"] = len(request.watch_ids) + 1
    if request.stop_ids:
        fields["stop_token_ids"] = list(request.stop_ids)
    if request.allowed_ids is not None:
        fields["allowed_token_ids"] = list(request.allowed_ids)
    if request.constraint is not None:
        fields["structured_outputs"] = request.constraint.as_structured_outputs()
    return fields


def _tokens_body(request: Generate, model: str, request_id: str, max_model_len: int) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "model": model,
        "token_ids": list(request.prompt_ids),
        "sampling_params": _sampling(request, max_model_len) | {"flat_logprobs": True, "detokenize": False},
        "stream": False,
    }


def _completions_body(request: Generate, model: str, request_id: str, max_model_len: int) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "model": model,
        "prompt": list(request.prompt_ids),
        **_sampling(request, max_model_len),
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": False,
    }


def _tokens_rows(choice: Mapping[str, Any]) -> list[Any]:
    """For each position the entry of its token, with those of the watched ids."""
    match choice:
        case {"logprobs": {"content": [*rows]}}:
            return rows
        case _:
            raise BadReplyError("the reply lacks choices[0] with token_ids, logprobs.content and finish_reason")


def _completions_rows(choice: Mapping[str, Any]) -> list[Any]:
    match choice:
        case {"logprobs": {"tokens": [*tokens], "token_logprobs": [*values], "top_logprobs": [*tops]}} if (
            len(tokens) == len(values) == len(tops)
        ):
            return [
                _entry(token, value) | {"top_logprobs": [_entry(*one) for one in (top or {}).items()]}
                for token, value, top in zip(tokens, values, tops, strict=True)
            ]
        case _:
            raise BadReplyError("the reply lacks choices[0] with token_ids, logprobs of tokens and finish_reason")


def _entry(token: object, value: object) -> dict[str, Any]:
    """A log-probability that a completion gives under a name such as `token_id:7`."""
    name, _, number = str(token).partition(":")
    return {"token_id": int(number) if name == "token_id" and number.isdecimal() else None, "logprob": value}


@dataclass(frozen=True, slots=True)
class Wire:
    """A route that serves requests."""

    route: str  # path below the server's address
    # JSON of a request: the request, checked against the limits before; served name of the model or adapter; a request
    # id, never used before; the server's longest context
    body: Callable[[Generate, str, str, int], dict[str, Any]]
    rows: Callable[[Mapping[str, Any]], list[Any]]  # entries of `choices[0]`, a position each

    def parse(self, content: bytes, request: Generate) -> Generated:
        """Our result for a reply to `request`.

        Raises:
            BadReplyError: it is not JSON, or lacks an id, a token or a number; nothing is ever filled in.
        """
        reply = json_of(content)
        match reply:
            case {"choices": [{"token_ids": [*ids], "finish_reason": str(reason)} as choice]}:
                rows = self.rows(choice)
            case _:
                raise BadReplyError("the reply lacks choices[0] with token_ids, logprobs.content and finish_reason")
        if reason not in ("stop", "length"):
            raise BadReplyError(f"the server ended the request early ({reason})")
        if not ids or len(ids) != len(rows) or len(ids) > request.max_tokens:
            raise BadReplyError(
                f"{len(ids)} tokens with {len(rows)} log-probabilities for max_tokens={request.max_tokens}"
            )
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


TOKENS = Wire("/inference/v1/generate", _tokens_body, _tokens_rows)
"""Of a server that was started with `--enable-scale-out`; it can also abort a request by its id."""
COMPLETIONS = Wire("/v1/completions", _completions_body, _completions_rows)
"""Of any `vllm serve` that knows `logprob_token_ids`."""
