"""Makes the final files of a run from its shards, and counts what is in them. Done again, it writes the same.

Knows the layout of the output directory; nothing of how shards were made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.atomic import write_json, writing
from selfrag.provenance import commit, sha256, versions

FILES = ("rows", "provenance", "dropped")
_VERSIONS = ("selfrag", "spacy", "torch", "transformers", "datasets")


@dataclass(slots=True)
class Counts:
    """What a run made, for its manifest."""

    items: int = 0
    pairs: int = 0
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    passages: int = 0
    gold: int = 0
    sources: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def row(self, row: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Count one row."""
        tokens = [part["token"] for part in row["target"] if "token" in part]
        self.rows += 1
        self.tokens.update(tokens)
        self.passages += sum("passage" in part for part in row["target"])
        chosen = [s["chosen"] for s in provenance["segments"] if "chosen" in s]
        golden = [{c["id"] for c in s["candidates"] if c["gold"]} for s in provenance["segments"] if "chosen" in s]
        self.gold += sum(id_ in ids for id_, ids in zip(chosen, golden, strict=True))
        source = self.sources[row["source"]]
        source["rows"] += 1
        source["with_retrieval"] += "[Retrieval]" in tokens

    def as_dict(self) -> dict[str, Any]:
        """Plain values in a fixed order."""
        return {
            "items": self.items,
            "pairs_with_rows": self.pairs,
            "rows": self.rows,
            "dropped": dict(sorted(self.dropped.items())),
            "tokens": dict(sorted(self.tokens.items())),
            "passages": self.passages,
            "gold_passages": self.gold,
            "sources": {name: dict(counts) for name, counts in sorted(self.sources.items())},
        }


def file_of(shards: Path, number: int) -> Path:
    """The file of a shard."""
    return shards / f"{number:08d}.jsonl"


def fingerprint(shards: Iterable[str]) -> str:
    """Of all pairs, from the fingerprints of their shards in order."""
    return hashlib.sha256("".join(shards).encode()).hexdigest()


def merge(shards: Path, number: int, out: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Write the final files; the manifest comes last and says that all is there.

    Args:
        shards: directory of the shard files.
        number: how many there are.
        out: where to write.
        identity: head of the manifest.

    Returns:
        The manifest.

    Raises:
        UserError: the disk is full.
    """
    counts = Counts()
    heads: list[str] = []
    final = {name: out / f"{name}.jsonl" for name in FILES}
    drafts = {name: shards / f"{name}.draft" for name in FILES}
    with writing(out):
        with ExitStack() as stack:
            streams = {name: stack.enter_context(drafts[name].open("w", encoding="utf-8")) for name in FILES}
            for shard in range(number):
                with file_of(shards, shard).open(encoding="utf-8") as lines:
                    heads.append(json.loads(next(lines))["fingerprint"])
                    for line in lines:
                        _distribute(json.loads(line), streams, counts)
            for stream in streams.values():
                stream.flush()
                os.fsync(stream.fileno())
        for name in FILES:
            drafts[name].replace(final[name])
    manifest = {
        **identity,
        "pairs": fingerprint(heads),
        "counts": counts.as_dict(),
        "files": {f"{name}.jsonl": sha256(final[name]) for name in FILES},
        "versions": versions(_VERSIONS),
        "commit": commit(),
    }
    draft = shards / "manifest.json"  # so that a kill leaves nothing beside the final files
    write_json(draft, manifest)
    with writing(out):
        draft.replace(out / draft.name)
    return manifest


def _distribute(item: Mapping[str, Any], streams: Mapping[str, Any], counts: Counts) -> None:
    counts.items += 1
    if dropped := item.get("dropped"):
        counts.dropped[dropped["reason"]] += 1
        streams["dropped"].write(json.dumps(dropped, ensure_ascii=False) + "\n")
        return
    counts.pairs += 1
    for row, provenance in zip(item["rows"], item["provenance"], strict=True):
        counts.row(row, provenance)
        streams["rows"].write(json.dumps(row, ensure_ascii=False) + "\n")
        streams["provenance"].write(json.dumps(provenance, ensure_ascii=False) + "\n")
