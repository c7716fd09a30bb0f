"""The page that shows recorded answers and ranks them again, alone in a file or on a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from selfrag.common.untrusted import clean, inert
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import LEAST_COVERAGE
from selfrag.decoding.trace import Trace, decoding_dict
from selfrag.reflection.labels import CRITIQUES, RETRIEVE
from selfrag.render.documents import document, page_policy, style_sheet


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the page of a server tells about it."""

    name: str  # of the model, as requests say it
    model: str = "demo"  # where it was loaded from, for a call in Python
    index: str | None = None  # the index that is searched; None for the demo's
    needs_key: bool = False  # whether requests must bring a key


def served_page(served: ServedModel) -> tuple[str, str]:
    """Return the page that asks a server for answers, and its content security policy."""
    return _page(
        f"selfrag: {served.name}", {"server": True, **asdict(served)}, connect="'self'"
    )


def traces_page(traces: Mapping[str, Trace]) -> str:
    """Return a page of one file that shows traces and ranks them again; it asks no address for anything.

    Each trace stands under the fragment of the page's address that shows it, such as `item-3`; an empty one is shown
    where there is no fragment.
    """
    shown = {name: trace.as_dict() for name, trace in traces.items()}
    data = {
        "name": "demo",
        "model": "demo",
        "index": None,
        "needs_key": False,
        "server": False,
        "traces": shown,
    }
    title = "selfrag: a recorded answer"
    if len(shown) > 1:
        title = "selfrag: recorded answers"
    return _page(title, data, connect="'none'")[0]


def _page(title: str, data: dict[str, Any], *, connect: str) -> tuple[str, str]:
    script = _asset("viewer.js")
    policy = page_policy(script, pictures=True, connect=connect)
    values: dict[str, dict[str, float]] = {}
    names: dict[str, list[str]] = {}
    for labels in CRITIQUES:
        values[str(labels.role)] = {label.name: label.value for label in labels}
        names[str(labels.role)] = [
            label.name for label in sorted(labels, key=lambda label: label.value)
        ]
    known = {
        "values": values,
        "labels": names,
        "retrieve": list(RETRIEVE.names),
        "least_coverage": LEAST_COVERAGE,
        "abstention": Decoding.abstention,
        "defaults": decoding_dict(Decoding()),
    }
    content = json.dumps(clean(data | known), ensure_ascii=True).replace("<", "\\u003c")
    body = (
        f"{_asset('viewer.html').replace('{title}', inert(title, 160))}"
        f'<script type="application/json" id="given">{content}</script>\n<script>{script}</script>'
    )
    icon = '<link rel="icon" href="data:,">'  # else a browser asks the server for one
    text = document(title, style_sheet(_asset("viewer.css")), body, policy, icon)
    return text, f"{policy}; frame-ancestors 'none'"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
