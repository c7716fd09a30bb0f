"""The page that shows recorded answers and ranks them again, alone in a file or on a server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import LEAST_COVERAGE
from selfrag.decoding.trace import Trace, decoding_dict
from selfrag.reflection.labels import CRITIQUES, RETRIEVE
from selfrag.render.documents import style_sheet
from selfrag.render.text import inert


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the page of a server tells about it."""

    name: str  # of the model, as requests say it
    model: str = "demo"  # where it was loaded from, for a call in Python
    index: str | None = None  # the index that is searched; None for the demo's
    needs_key: bool = False  # whether requests must bring a key


def served_page(served: ServedModel) -> tuple[str, str]:
    """Return the page that asks a server for answers, and its content security policy."""
    return _page(f"selfrag: {served.name}", {"server": True, **asdict(served)}, connect="'self'")


def traces_page(traces: Mapping[str, Trace]) -> str:
    """A page of one file that shows traces and ranks them again; it asks no address for anything.

    Each trace stands under the fragment of the page's address that shows it, such as `item-3`; an empty one is shown
    where there is no fragment.
    """
    shown = {name: trace.as_dict() for name, trace in traces.items()}
    data = {"name": "demo", "model": "demo", "index": None, "needs_key": False, "server": False, "traces": shown}
    return _page(
        "selfrag: recorded answers" if len(shown) > 1 else "selfrag: a recorded answer", data, connect="'none'"
    )[0]


def _page(title: str, data: dict[str, Any], *, connect: str) -> tuple[str, str]:
    script = _asset("viewer.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    known = {
        "values": {str(labels.role): {label.name: label.value for label in labels} for labels in CRITIQUES},
        "labels": {
            str(labels.role): [label.name for label in sorted(labels, key=lambda label: label.value)]
            for labels in CRITIQUES
        },
        "retrieve": list(RETRIEVE.names),
        "least_coverage": LEAST_COVERAGE,
        "abstention": Decoding.abstention,
        "defaults": decoding_dict(Decoding()),
    }
    given = json.dumps(data | known, ensure_ascii=True).replace("<", "\\u003c")
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{inert(title, 160)}</title>\n<style>\n{style_sheet(_asset('viewer.css'))}\n</style></head>\n"
        f"<body>{_asset('viewer.html').replace('{title}', inert(title, 160))}"
        f'<script type="application/json" id="given">{given}</script>\n<script>{script}</script></body></html>\n'
    )
    return text, f"{policy}; frame-ancestors 'none'"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
