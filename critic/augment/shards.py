"""A shard: some pairs in a row, the unit of work, of resumption and of determinism. Work in, text of a file out.

Whatever runs a shard (this process, another one, another machine) gives the same text for the same pairs. Knows no
directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from critic.augment.augmented import Augmented, Dropped
from critic.augment.balance import variants
from critic.augment.driving import drive
from critic.augment.options import Augmenting
from critic.augment.record import provenance, row
from critic.augment.steps import augment
from critic.cases import Critic
from critic.pairs import Pair
from retrieval.passage import Retriever
from retrieval.splitting import SentenceFinder
from selfrag.training.rows import parse_row


@dataclass(frozen=True, slots=True)
class Shard:
    """Pairs, and rows that are none, in the order of the source."""

    number: int
    items: tuple[Pair | Dropped, ...]

    @property
    def fingerprint(self) -> str:
        """Changes with any of its items."""
        lines = [_line(item.as_dict() if isinstance(item, Pair) else [item.id, item.detail]) for item in self.items]
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def sharded(items: Iterable[Pair | Dropped], size: int) -> Iterator[Shard]:
    """Shards of `size` items; the last one may be smaller."""
    rest = iter(items)
    for number in count():
        chunk = tuple(islice(rest, size))
        if not chunk:
            return
        yield Shard(number, chunk)


def augment_shard(
    shard: Shard, critic: Critic, retriever: Retriever | None, options: Augmenting, find: SentenceFinder
) -> str:
    """The file of a shard: a line on the shard, then one for each of its items with its rows or why there is none.

    Raises:
        UserError: see `critic.augment.driving.drive`.
    """
    pairs = [item for item in shard.items if isinstance(item, Pair)]
    results = iter(drive([augment(pair, options, find) for pair in pairs], critic, retriever))
    head = _line({"shard": shard.number, "items": len(shard.items), "fingerprint": shard.fingerprint})
    ends = (next(results) if isinstance(item, Pair) else item for item in shard.items)
    return head + "".join(_line(_outcome(end, options)) for end in ends)


def _outcome(result: Augmented | Dropped, options: Augmenting) -> dict[str, Any]:
    if isinstance(result, Augmented):
        written = variants(result, options.balance, options.seed)
        if written:
            rows = [row(variant).as_dict() for variant in written]
            for record in rows:
                parse_row(record)  # what is written here is what training reads
            return {"rows": rows, "provenance": [provenance(variant) for variant in written]}
        result = Dropped(result.pair.id, "sampled out", f"no retrieval, kept {options.balance.keep_unretrieved:g}")
    id_ = result.id.encode("utf-8", "replace").decode()  # it may be what is wrong with the pair
    return {"dropped": {"id": id_, "reason": result.reason, "detail": result.detail}}


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
