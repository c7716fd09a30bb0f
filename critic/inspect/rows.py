"""One sampled row as HTML: tokens coloured and written out, passages folded, text as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from critic.inspect.reasons import reasons
from critic.inspect.statistics import problems
from selfrag.pages.escaping import inert, isolated
from selfrag.pages.palette import slug
from selfrag.training.rows import Evidence, Part, Row, Text, Token

MOST_PARTS = 200
"""Parts of a target that are shown."""


def article(number: int, row: Row, provenance: Mapping[str, Any] | None = None) -> str:
    """A row.

    Args:
        number: its place on the page, from 1; links go by it.
        row: untrusted, all of it.
        provenance: its record, if there is one.
    """
    tokens = dict.fromkeys(part.token for part in row.target if isinstance(part, Token))
    classes = " ".join(f"has-{slug(token)}" for token in tokens)
    weight = "" if row.weight == 1.0 else f", weight {row.weight:g}"
    parts = [_part(part) for part in row.target[:MOST_PARTS]]
    if len(row.target) > MOST_PARTS:
        parts.append(f'<p class="dim">{len(row.target) - MOST_PARTS:,} more parts</p>')
    wrong = "".join(f'<p class="problem">{inert(problem)}</p>' for problem in problems(row.target))
    return (
        f'<article id="row-{number}" class="{classes}" aria-labelledby="name-{number}">'
        f'<h3 id="name-{number}">{number}. {isolated(row.id, 120)}'
        f' <span class="dim">{isolated(row.source, 120)}{weight}</span></h3>'
        f'<div class="instruction" dir="auto">{inert(row.instruction)}</div>'
        f'<div class="target">{"".join(parts)}</div>{wrong}'
        f"{reasons(provenance) if provenance is not None else ''}</article>"
    )


def _part(part: Part) -> str:
    match part:
        case Token(token):
            return f'<span class="token t-{slug(token)}">{inert(token)}</span>'
        case Text(text):
            return isolated(text)
        case Evidence(passage):
            words = len(passage.text.split())
            return (
                f'<details class="passage"><summary>passage: {isolated(passage.title or passage.id, 120)}'
                f' ({words:,} words)</summary><div class="body" dir="auto">{inert(passage.text)}</div>'
                f'<p class="dim">{isolated(passage.id, 120)}</p></details>'
            )
