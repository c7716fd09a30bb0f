"""The whole page: one file that opens from disk, runs no script and asks no address for anything."""

from __future__ import annotations

from collections.abc import Sequence

from critic.inspect.inspecting import Inspection
from critic.inspect.overview import overview
from critic.inspect.rows import article
from selfrag.pages import COLOURS, document, inert, isolated, links, picked_out, slug, style_sheet, table, visible
from selfrag.training.rows import Row, Token

SECTIONS = {
    "sources": "Sources",
    "retrieve": "Retrieve",
    "isrel": "IsRel",
    "issup": "IsSup",
    "isuse": "IsUse",
    "lengths": "Lengths",
    "form": "Form",
    "rows": "Rows",
}


def render(inspection: Inspection) -> str:
    """The page as text. The same inspection gives the same page."""
    used = {part.token for row in inspection.sample for part in row.target if isinstance(part, Token)}
    filters = [token for token in COLOURS if token in used]
    total = inspection.statistics.total.rows
    names = ", ".join(name for name, _ in inspection.files[:3]) + (" ..." if len(inspection.files) > 3 else "")
    made = "".join(
        f'<li>{isolated(name, 120)} <span class="dim">sha256 {isolated(digest)}</span></li>'
        for name, digest in inspection.files[:50]
    )
    shown = f"{len(inspection.sample):,} of {total:,} rows, seed {inspection.seed}"
    body = (
        '<a class="skip" href="#rows">Skip to the rows</a>\n'
        f'<header><h1>Training rows</h1><p class="dim">{shown}</p><ul>{made}</ul>{links(SECTIONS)}</header>\n<main>\n'
        f"{overview(inspection.statistics)}\n{_chosen(inspection)}"
        f'<section><h2 id="rows">Rows</h2><p class="dim">{shown}, from every source as evenly as there are enough.</p>'
        f"{_filters(filters, inspection.sample)}\n{_articles(inspection)}</section>\n</main>"
    )
    own = [picked_out(f"show-{slug(token)}", f"article:not(.has-{slug(token)})") for token in filters]
    return document(f"Training rows: {visible(names, 120)}", style_sheet(*own), body)


def _articles(inspection: Inspection) -> str:
    return "\n".join(
        article(number, row, inspection.provenance.get(row.id)) for number, row in enumerate(inspection.sample, 1)
    )


def _filters(filters: Sequence[str], sample: Sequence[Row]) -> str:
    if not filters:
        return ""
    having = {token: sum(Token(token) in row.target for row in sample) for token in filters}
    choices = "".join(
        f'<label><input type="radio" name="show" id="show-{slug(token)}"> {inert(token)} ({having[token]})</label>'
        for token in filters
    )
    return (
        "<fieldset><legend>Show rows with</legend>"
        f'<label><input type="radio" name="show" id="show-all" checked> any token ({len(sample)})</label>{choices}'
        "</fieldset>"
    )


def _chosen(inspection: Inspection) -> str:
    if not inspection.recorded:
        return ""
    rows = [(inert(rule), [f"{count:,}"]) for rule, count in inspection.rules.most_common(20)]
    caption = f"How passages were chosen, over {inspection.recorded:,} provenance records"
    return f'<section><h2 id="chosen">Choice of passages</h2>{table(caption, ("rule", "segments"), rows)}</section>'
