"""Exact log-probabilities of a closed set of options after one prefix, read along their token trie. Sans-IO, pure.

One one-token request for each inner node of the trie; knows no critique, no passage and no reflection token.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from selfrag.decoding.requests import Generate, Generated

Ids: TypeAlias = tuple[int, ...]
Length: TypeAlias = Literal["none", "tokens", "characters"]
"""What an option's log-probability is divided by; `characters` ranks as `acc_norm` of lm-evaluation-harness does."""

MOST_WATCHED = 19
"""Watched ids of one request that every engine serves, a `vllm serve` as it is started by default among them."""


def option_requests(
    prefix: Ids,
    options: Sequence[Ids],
    enders: Ids = (),
    *,
    adapter: str | None = None,
    most_watched: int = MOST_WATCHED,
) -> list[Generate]:
    """The requests whose results `option_logprobs` reads.

    Args:
        prefix: everything before the option.
        options: token ids of each option, none empty.
        enders: ids that can end an option; asked for only where another option goes on.
        adapter: the LoRA adapter to ask.
        most_watched: of one request, as the engine's limits say; where more options part, several requests ask.
    """
    requests, whole = [], set(options)
    for path, following in _trie(options).items():
        watch = (*following, *(enders if path in whole else ()))
        requests += [
            Generate((*prefix, *path), 1, watch_ids=watch[i : i + most_watched], adapter=adapter)
            for i in range(0, len(watch), most_watched)
        ]
    return requests


def option_logprobs(
    requests: Sequence[Generate], results: Sequence[Generated], prefix: Ids, options: Sequence[Ids], enders: Ids = ()
) -> list[float]:
    """Natural log-probability of each option after `prefix`.

    Where other options extend an option, also that it ends there.
    """
    rows: dict[Ids, dict[int, float]] = defaultdict(dict)
    for request, result in zip(requests, results, strict=True):
        path = request.prompt_ids[len(prefix) :]
        rows[path] |= zip(request.watch_ids, result.watched[0].tolist(), strict=True)
    return [_logprob(rows, ids, enders) for ids in options]


def normalised(
    logprobs: Sequence[float], texts: Sequence[str], options: Sequence[Ids], length: Length = "none"
) -> list[float]:
    """Probabilities over the options, so that a long one is at no disadvantage where its length is taken out.

    Options are then ranked by their log-probability per token or character. It is multiplied by their average length:
    bare quotients lie so close together that any critique would outweigh them, and equally long options are to keep
    their probabilities.

    Args:
        logprobs: natural, one an option.
        texts: of the options.
        options: token ids of each.
        length: what is taken out.
    """
    values = np.array(logprobs)
    if length != "none":
        # A text of no token is possible: the codec leaves out what the tokenizer does not know.
        lengths = np.array([max(1, len(one)) for one in (options if length == "tokens" else texts)])
        values = values / lengths * lengths.mean()
    weights = np.exp(values - values.max())
    probabilities: list[float] = (weights / weights.sum()).tolist()
    return probabilities


def _trie(options: Sequence[Ids]) -> dict[Ids, Ids]:
    """Inner nodes (paths) of the options' token trie, with the ids that may follow."""
    following: dict[Ids, dict[int, None]] = defaultdict(dict)
    for ids in options:
        for i, token in enumerate(ids):
            following[ids[:i]][token] = None
    return {path: tuple(tokens) for path, tokens in following.items()}


def _logprob(rows: dict[Ids, dict[int, float]], ids: Ids, enders: Ids) -> float:
    total = math.fsum(rows[ids[:i]][token] for i, token in enumerate(ids))
    end = rows.get(ids)
    if end is not None:
        total += math.log(max(math.fsum(math.exp(end[token]) for token in enders), 1e-38))
    return total
