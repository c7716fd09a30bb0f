"""Exact probabilities of texts: a trie of their ids, one request a node, and what the results make of each text."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Literal, TypeAlias

import numpy as np

from selfrag.reflection.requests import (
    Failed,
    Generate,
    Generated,
    Steps,
    TokenIds,
    ask,
)

Length: TypeAlias = Literal["none", "tokens", "characters"]
"""What an option's log-probability is divided by; `characters` ranks as `acc_norm` of lm-evaluation-harness does."""

MOST_WATCHED = 19
"""Watched ids of one request that every engine serves, a `vllm serve` as it is started by default among them."""


def option_requests(
    prefix: TokenIds,
    options: Sequence[TokenIds],
    enders: TokenIds = (),
    *,
    adapter: str | None = None,
    most_watched: int = MOST_WATCHED,
) -> list[Generate]:
    """Return the requests whose results `option_logprobs` reads.

    `enders` can end an option; they are asked for only where another option continues. A branching larger than
    `most_watched` ids takes several requests.
    """
    requests = []
    complete = set(options)
    for path, watch in _trie(options).items():
        if path in complete:
            watch = (*watch, *enders)
        for begin in range(0, len(watch), most_watched):
            watched = watch[begin : begin + most_watched]
            requests.append(
                Generate((*prefix, *path), 1, watch_ids=watched, adapter=adapter)
            )
    return requests


def option_logprobs(
    requests: Sequence[Generate],
    results: Sequence[Generated],
    prefix: TokenIds,
    options: Sequence[TokenIds],
    enders: TokenIds = (),
) -> list[float]:
    """Return the natural log-probability of each option after `prefix`.

    If another option extends an option, this includes the probability that the shorter one ends.
    """
    rows: dict[TokenIds, dict[int, float]] = defaultdict(dict)
    for request, result in zip(requests, results, strict=True):
        path = request.prompt_ids[len(prefix) :]
        rows[path] |= zip(request.watch_ids, result.watched[0].tolist(), strict=True)
    return [_logprob(rows, ids, enders) for ids in options]


def score_options(
    prefixes: Sequence[TokenIds],
    options: Sequence[TokenIds],
    enders: TokenIds,
    most_watched: int,
) -> Steps[list[list[float] | Failed]]:
    """Return for each prefix the natural log-probability of each option after it, or why there is none."""
    plans = []
    batch: list[Generate] = []
    for prefix in prefixes:
        requests = option_requests(prefix, options, enders, most_watched=most_watched)
        plans.append((prefix, requests))
        batch += requests
    remaining = iter((yield from ask(batch)))
    rows: list[list[float] | Failed] = []
    for prefix, requests in plans:
        served, failures = [], []
        for result in islice(remaining, len(requests)):
            if isinstance(result, Failed):
                failures.append(result)
            else:
                served.append(result)
        if failures:
            rows.append(failures[0])
        else:
            rows.append(option_logprobs(requests, served, prefix, options, enders))
    return rows


def normalised(
    logprobs: Sequence[float],
    texts: Sequence[str],
    options: Sequence[TokenIds],
    length: Length = "none",
) -> list[float]:
    """Return probabilities over the options, with length normalisation if `length` asks for it.

    Normalisation ranks the options by log-probability per token or character, times their average length. Without that
    factor the values would lie so close together that any critique outweighs them. With it, options of equal length
    keep their probabilities.
    """
    values = np.array(logprobs)
    if length != "none":
        # A text of no token is possible: the codec leaves out what the tokenizer does not know.
        lengths = np.maximum(
            1, list(map(len, options if length == "tokens" else texts))
        )
        values = values / lengths * lengths.mean()
    weights = np.exp(values - values.max())
    probabilities: list[float] = (weights / weights.sum()).tolist()
    return probabilities


def _trie(options: Sequence[TokenIds]) -> dict[TokenIds, TokenIds]:
    """Return the inner nodes (paths) of the options' token trie, with the ids that may follow."""
    following: dict[TokenIds, dict[int, None]] = defaultdict(dict)
    for ids in options:
        for i, token in enumerate(ids):
            following[ids[:i]][token] = None
    return {path: tuple(tokens) for path, tokens in following.items()}


def _logprob(
    rows: dict[TokenIds, dict[int, float]], ids: TokenIds, enders: TokenIds
) -> float:
    total = math.fsum(rows[ids[:i]][token] for i, token in enumerate(ids))
    end = rows.get(ids)
    if end is not None:
        total += math.log(
            max(math.fsum(math.exp(end[token]) for token in enders), 1e-38)
        )
    return total
