"""Where the figures come from, as HTML: every run and every file, and the whole manifests, folded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from selfrag.evaluation.reporting.origins import file_origin, mapping, run_origin
from selfrag.pages.escaping import inert, isolated
from selfrag.pages.markup import table

_LONGEST = 20_000


def provenance(manifests: Mapping[str, Mapping[str, Any]]) -> str:
    """Two tables and the whole manifests.

    Args:
        manifests: name of a system to the manifest of its run; of others, so nothing but its frame is relied on.
    """
    ran = {name: run_origin(manifest) for name, manifest in manifests.items()}
    files = mapping(next(iter(manifests.values())).get("files"))
    read = {name: file_origin(entry) for name, entry in files.items()}
    whole = "".join(
        f"<details><summary>manifest of {isolated(name, 80)}</summary>"
        f"<pre>{inert(json.dumps(manifest, ensure_ascii=False, indent=1), _LONGEST)}</pre></details>"
        for name, manifest in manifests.items()
    )
    return _table("Runs", "system", ran) + _table("Files", "file", read) + whole


def _table(caption: str, what: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    head = (what, *next(iter(rows.values()), {}))
    lines = [(isolated(name, 80), [isolated(cell, 300) for cell in cells.values()]) for name, cells in rows.items()]
    return table(caption, head, lines)
