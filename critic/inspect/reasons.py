"""Why a row is what it is: its provenance record as HTML. Shows what it knows and tolerates what is missing or new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from selfrag.pages import inert, isolated, table

_MOST = 20  # segments, and candidates of a segment
_RAW = 4_000


def reasons(record: Mapping[str, Any]) -> str:
    """A folded section; everything in the record is untrusted."""
    lines = [_line("row", record.get("why")), _judged("retrieve at the start", record.get("retrieve"))]
    lines += [_line("searched for", record.get("query")), _judged("usefulness", record.get("isuse"))]
    segments = _listed(record.get("segments"))
    inside = [_segment(number, segment) for number, segment in enumerate(segments[:_MOST], 1)]
    if len(segments) > _MOST:
        inside.append(f"<p>{len(segments) - _MOST:,} more segments</p>")
    whole = json.dumps(record, ensure_ascii=False, indent=1)
    raw = f"<details><summary>the whole record</summary><pre>{inert(whole, _RAW)}</pre></details>"
    return f"<details><summary>why these tokens</summary>{''.join([*lines, *inside])}{raw}</details>"


def _segment(number: int, segment: Any) -> str:
    if not isinstance(segment, Mapping):
        return ""
    lines = [
        f"<p><strong>segment {number}</strong> {_plain(segment.get('token'))}</p>",
        _line("because", segment.get("why")),
        _judged("judged", segment.get("retrieve")),
        _line("searched for", segment.get("query")),
        _line("passage chosen", segment.get("rule")),
        _judged("support", segment.get("issup")),
    ]
    candidates = [c for c in _listed(segment.get("candidates")) if isinstance(c, Mapping)]
    if candidates:
        head = ("passage", "rank", "score", "IsRel", "IsSup", "chosen")
        rows = [
            (
                isolated(str(c.get("title") or c.get("id", "")), 80),
                [
                    _plain(c.get("rank")),
                    _plain(c.get("score")),
                    _short(c.get("isrel")),
                    _short(c.get("issup")),
                    "yes" if c.get("id") == segment.get("chosen") else "",
                ],
            )
            for c in candidates[:_MOST]
        ]
        lines.append(table(f"Candidates of segment {number}", head, rows))
    return "".join(lines)


def _judged(name: str, judgment: Any) -> str:
    if not isinstance(judgment, Mapping):
        return ""
    shares = judgment.get("p")
    shown = ", ".join(f"{key} {_number(share)}" for key, share in shares.items()) if isinstance(shares, Mapping) else ""
    return _line(name, f"{judgment.get('label')}{f' ({shown})' if shown else ''}")


def _short(judgment: Any) -> str:
    if not isinstance(judgment, Mapping):
        return "-"
    label, shares = judgment.get("label"), judgment.get("p")
    share = shares.get(label) if isinstance(shares, Mapping) and isinstance(label, str) else None
    return f"{_plain(label)} {_plain(share)}"


def _line(name: str, value: Any) -> str:
    return "" if value in (None, "") else f'<p class="dim">{name}: {isolated(str(value), 600)}</p>'


def _plain(value: Any) -> str:
    return isolated(_number(value), 120)


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
