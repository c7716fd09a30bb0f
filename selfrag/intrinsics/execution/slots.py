"""Slots on an engine: one-token requests along the token trie of the surfaces, and exact probabilities from them.

Pure. The probability of a surface is the product along its tokens, read from the raw model at every inner node of the
trie. Where a token spans the seam between prefill and surface, both ways of writing the same text count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from selfrag.decoding.options import option_logprobs, option_requests
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.prefixes import common_length
from selfrag.intrinsics.rendering import Renderer
from selfrag.intrinsics.wire import Slot

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """How one slot is scored.

    Attributes:
        prefix: everything before the surfaces.
        paths: token sequences, none the beginning of another.
        owners: for each path the number of the surface that it writes.
        requests: one a node of the trie; more where more ids part than an engine can watch.
    """

    prefix: Ids
    paths: tuple[Ids, ...]
    owners: tuple[int, ...]
    requests: tuple[Generate, ...]

    def scores(self, results: Sequence[Generated | Failed]) -> tuple[float, ...] | None:
        """Natural log-probability of each surface; None if a request failed or a value is no probability."""
        served = [result for result in results if isinstance(result, Generated)]
        if len(served) < len(self.requests):
            return None
        logprobs = option_logprobs(self.requests, served, self.prefix, self.paths)
        if any(math.isnan(value) for value in logprobs):
            return None
        surfaces = range(max(self.owners) + 1)
        return tuple(
            _log_sum([value for value, owner in zip(logprobs, self.owners, strict=True) if owner == surface])
            for surface in surfaces
        )


def plan(renderer: Renderer, slot: Slot, prompt: Ids, *, adapter: str | None, most_watched: int) -> SlotPlan:
    """The requests of a slot after a prompt.

    Raises:
        UserError: the tokenizer cannot tell the surfaces apart.
    """
    found = renderer.slot(slot)
    before = tuple(renderer.text.encode(slot.prefill))
    border = common_length(found.shared, before)
    paths = {(*found.shared[border:], *path): owner for owner, path in enumerate(found.paths)}
    if border < len(before):
        paths |= _seams(renderer, slot, before, border, taken=paths)
    prefix = (*prompt, *before[:border])
    requests = option_requests(prefix, list(paths), adapter=adapter, most_watched=most_watched)
    return SlotPlan(prefix, tuple(paths), tuple(paths.values()), tuple(requests))


def _seams(renderer: Renderer, slot: Slot, before: Ids, border: int, *, taken: dict[Ids, int]) -> dict[Ids, int]:
    """Ways of writing that keep the seam: the prefill's own tokens, then the surface by itself."""
    found: dict[Ids, int] = {}
    for owner, surface in enumerate(slot.surfaces):
        ids = (*before, *renderer.text.encode(surface))
        path = ids[border:]
        # A tokenizer may put a space before a text that stands alone; such a path would write something else.
        if path not in taken and renderer.text.decode(ids) == renderer.text.decode(
            (*before[:border], *_of(taken, owner))
        ):
            found[path] = owner
    return found


def _of(paths: dict[Ids, int], owner: int) -> Ids:
    return next(path for path, number in paths.items() if number == owner)


def _log_sum(values: Sequence[float]) -> float:
    top = max(values, default=-math.inf)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(value - top) for value in values))
