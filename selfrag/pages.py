"""What people look at: answers as text and HTML, pages of one file, a viewer, a trace as an SVG tree, figures."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any

from retrieval.atomic import writing
from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import ROOT, Node, Status, Trace
from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, GROUPS, RETRIEVE, LabelSet, Role
from selfrag.untrusted import UNSEEN, printable

LONGEST = 6_000
"""Characters of one text that are shown; how many more there are is said."""


def visible(text: str, longest: int = LONGEST) -> str:
    """Plain text, every character of which can be seen; cut if it is longer than `longest`."""
    cut = text[:longest]
    shown = UNSEEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", cut.replace("\r\n", "\n"))
    return shown if len(text) <= longest else f"{shown} \u2026 ({len(text) - longest:,} more characters)"


def inert(text: str, longest: int = LONGEST) -> str:
    """`visible`, for the inside of an element or of a quoted attribute."""
    return escape(visible(text, longest), quote=True)


NAMES: dict[Role, str] = {
    Role.RETRIEVE: "Retrieve",
    Role.RELEVANCE: "IsRel",
    Role.SUPPORT: "IsSup",
    Role.UTILITY: "IsUse",
}
"""The paper's names of the groups."""


@dataclass(frozen=True, slots=True)
class Colours:
    """Colours of one token: (background, text) of its badge in the light and in the dark, and of its bar."""

    light: tuple[str, str]
    dark: tuple[str, str]
    bar: str


_BLUE = Colours(("#dbeafe", "#1e3a8a"), ("#1e3a8a", "#dbeafe"), "#3b82f6")
_GREY = Colours(("#e5e7eb", "#374151"), ("#374151", "#e5e7eb"), "#8b94a3")
_VIOLET = Colours(("#ede9fe", "#5b21b6"), ("#4c1d95", "#ede9fe"), "#a78bfa")
_GREEN = Colours(("#dcfce7", "#14532d"), ("#14532d", "#dcfce7"), "#22a352")
_LIME = Colours(("#ecfccb", "#3f6212"), ("#365314", "#ecfccb"), "#84b31f")
_AMBER = Colours(("#fef3c7", "#78350f"), ("#78350f", "#fef3c7"), "#dba00b")
_ORANGE = Colours(("#ffedd5", "#7c2d12"), ("#7c2d12", "#ffedd5"), "#ea6a1c")
_RED = Colours(("#fee2e2", "#7f1d1d"), ("#7f1d1d", "#fee2e2"), "#d93636")

_OF_GROUP: dict[Role, tuple[Colours, ...]] = {
    Role.RETRIEVE: (_BLUE, _GREY, _VIOLET),
    Role.RELEVANCE: (_GREEN, _ORANGE),
    Role.SUPPORT: (_GREEN, _AMBER, _RED),
    Role.UTILITY: (_RED, _ORANGE, _AMBER, _LIME, _GREEN),
}

COLOURS: dict[str, Colours] = {
    label.token: colours for labels in GROUPS for label, colours in zip(labels, _OF_GROUP[labels.role], strict=True)
}
"""Token string -> its colours."""

GROUP_OF: dict[str, LabelSet] = {label.token: labels for labels in GROUPS for label in labels}
"""Token string -> its group."""


def slug(token: str) -> str:
    """The token's name as a CSS class and an HTML id."""
    return re.sub("[^a-z0-9]+", "-", token.casefold()).strip("-")


LIGHT = {"page": "#ffffff", "ink": "#1a1d21", "dim": "#565d66", "line": "#c9ced6", "box": "#f5f6f8", "link": "#0b57b0"}
DARK = {"page": "#14171a", "ink": "#e8eaed", "dim": "#a9b0b9", "line": "#454c55", "box": "#1e2226", "link": "#8ab8ff"}


def _part(name: str) -> str:
    return files(__package__).joinpath("viewer", name).read_text(encoding="utf-8")


def style_sheet(*own: str) -> str:
    """The style sheet, with the rules of one page last."""
    badges = [
        f".t-{slug(t)} {{ background: {c.light[0]}; color: {c.light[1]} }} .b-{slug(t)} {{ fill: {c.bar} }}"
        for t, c in COLOURS.items()
    ]
    dark = [f".t-{slug(t)} {{ background: {c.dark[0]}; color: {c.dark[1]} }}" for t, c in COLOURS.items()]
    return "\n".join(
        [
            f":root {{ {_variables(LIGHT)} }}",
            _part("page.css").strip(),
            *badges,
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} {' '.join(dark)} }}",
            *own,
        ]
    )


def picked_out(box: str, rows: str) -> str:
    """The rule by which a radio button with this id hides the rows that it does not pick, without a script."""
    return f"body:has(#{box}:checked) {rows} {{ display: none }}"


def _variables(colours: dict[str, str]) -> str:
    return "; ".join(f"--{name}: {value}" for name, value in colours.items())


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: even if some text became mark-up, no script of it could run and nothing be fetched."""


def document(title: str, style: str, body: str, *, pictures: bool = False) -> str:
    """A whole page, which runs no script and asks no address for anything; `body` is HTML, `title` is text.

    With `pictures` those that are part of the file (`data:`) may be shown.
    """
    policy = f"{POLICY}; img-src data:" if pictures else POLICY
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{inert(title, 160)}</title>\n<style>\n{style}\n</style></head>\n<body>{body}</body></html>\n"
    )


BOX, GAP_X, GAP_Y, LINE = (300, 96), 70, 14, 15
FILLS = {
    Status.KEPT: "#dcefdc",
    Status.FINISHED: "#dcefdc",
    Status.PRUNED: "#f2f2f2",
    Status.BOUNDED: "#f2f2f2",
    Status.MERGED: "#f2f2f2",
    Status.DUPLICATE: "#f7ecd4",
    Status.EMPTY: "#f7ecd4",
    Status.FORBIDDEN: "#f7dada",
    Status.FAILED: "#f7dada",
}


def svg(trace: Trace, *, name: str = "node") -> str:
    """Draw the tree from left to right; the answer's path has thick borders.

    Each box shows the evidence, the text, IsRel / IsSup / IsUse scores, the segment score and what became of it. Ids of
    the boxes begin with `name`, which must differ between the trees of a page. All texts are untrusted.
    """
    chosen = {node.id for node in trace.path(trace.best)}
    rows = _rows(trace)
    height = max(rows.values(), default=0) * (BOX[1] + GAP_Y) + BOX[1] + 2 * GAP_Y
    width = (max((node.depth for node in trace.nodes), default=0) + 1) * (BOX[0] + GAP_X) + GAP_Y
    parts = [_box(f"{name}{ROOT}", 0, rows[ROOT], _question(trace), fill="#dfe8f7", thick=True)]
    for node in trace.nodes:
        thick = node.id in chosen
        parts.append(_edge(0 if node.parent == ROOT else node.depth - 1, rows[node.parent], rows[node.id], thick=thick))
        box = f"{name}{node.id}"
        parts.append(_box(box, node.depth, rows[node.id], _lines(node), fill=FILLS[node.status], thick=thick))
    style = "font-family='sans-serif' font-size='11'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' {style}>"
        f"<rect width='100%' height='100%' fill='white'/>{''.join(parts)}</svg>"
    )


def _rows(trace: Trace) -> dict[int, float]:
    """Vertical position of each node: leaves one below the other, parents beside the middle of their children."""
    rows: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for node in trace.nodes:
        children.setdefault(node.parent, []).append(node.id)
    # Depth first: a node's first visit puts its children before its second one, which places it beside them.
    free = 0
    waiting = [(ROOT, False)]
    while waiting:
        parent, children_placed = waiting.pop()
        below = children.get(parent, [])
        if not below:
            rows[parent] = free
            free += 1
        elif children_placed:
            rows[parent] = (rows[below[0]] + rows[below[-1]]) / 2
        else:
            waiting.append((parent, True))
            waiting.extend((child, False) for child in reversed(below))
    return rows


def _corner(depth: int, row: float) -> tuple[float, float]:
    return GAP_Y + depth * (BOX[0] + GAP_X), GAP_Y + row * (BOX[1] + GAP_Y)


def _edge(depth: int, start: float, end: float, *, thick: bool) -> str:
    x1, y1 = _corner(depth, start)
    x2, y2 = _corner(depth + 1, end)
    middle = BOX[1] / 2
    return (
        f"<path d='M{x1 + BOX[0]:.0f} {y1 + middle:.0f} C{x1 + BOX[0] + GAP_X / 2:.0f} {y1 + middle:.0f},"
        f"{x2 - GAP_X / 2:.0f} {y2 + middle:.0f},{x2:.0f} {y2 + middle:.0f}' fill='none' stroke='#888' "
        f"stroke-width='{2.5 if thick else 1}'/>"
    )


def _box(key: str, depth: int, row: float, lines: list[str], *, fill: str, thick: bool) -> str:
    x, y = _corner(depth, row)
    text = "".join(
        f"<text x='{x + 8:.0f}' y='{y + 16 + i * LINE:.0f}' font-weight='{400 if i else 700}'>{inert(line)}</text>"
        for i, line in enumerate(lines)
    )
    return (
        f"<g id='{key}'><rect x='{x:.0f}' y='{y:.0f}' width='{BOX[0]}' height='{BOX[1]}' rx='5' fill='{fill}' "
        f"stroke='#555' stroke-width='{2.5 if thick else 0.8}'/>{text}</g>"
    )


def _question(trace: Trace) -> list[str]:
    first = next((decision for decision in trace.decisions if decision.after == ROOT), None)
    why = visible(f"{first.action}: {first.reason}") if first else "not decided"
    return [*wrap(shorten(visible(trace.question), 130, placeholder=" .."), 48)[:4], why]


def _lines(node: Node) -> list[str]:
    source = {"none": "without evidence", "continue": "same evidence", "passage": "evidence"}[node.branch]
    title = visible(f"{source}: {node.passage.title or node.passage.id}") if node.passage else source
    scores = []
    for labels in CRITIQUES:
        judgment = node.judgments.get(labels.role)
        scores.append(f"{labels.role} {judgment.score:.2f}" if judgment else f"{labels.role} -")
    body = wrap(shorten(visible(node.text or node.finish), 100, placeholder=" .."), 50)[:2]
    return [shorten(title, 48, placeholder=" .."), *body, ", ".join(scores), f"score {node.score:.3f}, {node.status}"]


def served_page(model: str) -> tuple[str, str]:
    """The page that asks a server for answers, and its content security policy."""
    return _page(f"selfrag: {model}", {"model": model, "server": True}, connect="'self'")


def traces_page(traces: Mapping[str, Trace]) -> str:
    """A page of one file that shows traces and ranks them again; it asks no address for anything.

    Each trace stands under the fragment of the page's address that shows it, such as `item-3`; an empty one is shown
    where there is no fragment.
    """
    shown = {name: trace.as_dict() for name, trace in traces.items()}
    data = {"model": "demo", "server": False, "traces": shown}
    return _page(
        "selfrag: recorded answers" if len(shown) > 1 else "selfrag: a recorded answer", data, connect="'none'"
    )[0]


def _page(title: str, data: dict[str, Any], *, connect: str) -> tuple[str, str]:
    script = _part("viewer.js")
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
        "abstention": Decoding.abstention,
    }
    given = json.dumps(data | known, ensure_ascii=True).replace("<", "\\u003c")
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{inert(title, 160)}</title>\n<style>\n{style_sheet(_part('viewer.css'))}\n</style></head>\n"
        f"<body>{_part('viewer.html').replace('{title}', inert(title, 160))}"
        f'<script type="application/json" id="given">{given}</script>\n<script>{script}</script></body></html>\n'
    )
    return text, f"{policy}; frame-ancestors 'none'"


TEXT, NAME = 20_000, 200
"""Characters that are shown of a text, and of a title or an id."""
LEFT = "style='text-align:left'"


def named(passage: Passage, most: int = NAME) -> str:
    """A passage's title, or its id where it has none, and the page of its document where that is known."""
    page = passage.metadata.get("page")
    where = f", p. {page}" if isinstance(page, int) and not isinstance(page, bool) else ""
    return cut(passage.title or passage.id, most) + where


def judged(judgment: Judgment | None) -> str:
    """`Relevant 0.93`, or a dash for a critique that was not made."""
    return "-" if judgment is None else f"{judgment.label} {max(judgment.distribution):.2f}"


def reflections(segment: Segment) -> str:
    """All judgments of a segment in one line."""
    own = [f"{labels.role}: {judged(segment.judgments.get(labels.role))}" for labels in GROUPS]
    return ", ".join([*own, *(f"{name}: {judged(judgment)}" for name, judgment in segment.joined.items())])


def spoken(answer: Answer) -> str:
    """The text with its citations."""
    return answer.cited_text() or "(no answer)"


def notes(answer: Answer) -> list[str]:
    """Return what a reader must know of an answer beside its text, a line each."""
    lines = []
    if answer.abstained:
        lines.append(f"abstained: {answer.reason}")
    if answer.without_evidence:
        lines.append(f"written without evidence: {answer.reason}")
    if answer.partial is not None:
        lines.append(f"partial: {answer.partial}")
    if answer.note is not None:
        lines.append(f"note: {answer.note}")
    if answer.finish == "length":
        lines.append("cut: the token budget or the context is used up")
    return lines


def plain(answer: Answer) -> str:
    """Text with numbered citations, why it ends early if it does, then the cited passages."""
    if answer.error is not None:
        return cut(f"error: {answer.error}")
    cited = [f"[{i}] {named(passage)}" for i, passage in enumerate(answer.citations, 1)]
    return "\n".join([printable(spoken(answer)), *map(cut, notes(answer)), *cited])


def html(answer: Answer) -> str:
    """A small table: each segment with its citation and judgments; passages unfold. Needs no style sheet or script."""
    if answer.error is not None:
        return f"<p><b>error</b>: {_escaped(answer.error)}</p>"
    numbers = answer.numbers
    rows = []
    for s in answer.segments:
        mark = f" <sup>[{numbers[s.citation.key]}]</sup>" if s.citation else ""
        cells = (
            f"<td {LEFT}>{_escaped(s.text)}{mark}</td><td {LEFT}>{_escaped(reflections(s))}</td><td>{s.score:.3f}</td>"
        )
        rows.append(f"<tr>{cells}</tr>")
    passages = []
    for passage in answer.citations:
        heading = f"[{numbers[passage.key]}] {escape(named(passage))}"
        passages.append(f"<details><summary>{heading}</summary><p>{_escaped(passage.text)}</p></details>")
    head = "<tr><th>segment</th><th>reflections</th><th>score</th></tr>"
    said = "" if rows else f"<p>{_escaped(spoken(answer))}</p>"
    for note in notes(answer):
        label, _, rest = note.partition(": ")
        said += f"<p><b>{label}</b>: {_escaped(rest)}</p>"
    return f"<p><b>{_escaped(answer.question)}</b></p>{said}<table>{head}{''.join(rows)}</table>{''.join(passages)}"


def _escaped(text: str) -> str:
    return escape(cut(text))


def cut(text: str, most: int = TEXT) -> str:
    """Text of others for people: nothing in it that cannot be shown, and where it is long, how much is left out."""
    left_out = len(text) - most
    return printable(text if left_out <= 0 else f"{text[:most]} ... ({left_out:,} characters more)")


FORMATS = (".png", ".svg", ".pdf")
_DOTS = 120


def save(figure: Any, out: Path) -> Path:
    """Write a `matplotlib.figure.Figure` to a file that ends in one of `FORMATS`; it appears when it is complete."""
    if out.suffix not in FORMATS:
        raise UserError(f"{out}: a plot ends in {', '.join(FORMATS)}")
    draft = out.with_name(f".{out.name}")
    with writing(out):
        draft.write_bytes(encoded(figure, out.suffix))
        draft.replace(out)
    return out


def encoded(figure: Any, suffix: str) -> bytes:
    """The bytes of a `matplotlib.figure.Figure` as a file of one of `FORMATS`."""
    from matplotlib import rc_context

    # No date and a fixed salt of the ids: a picture changes only if what it shows does. An SVG keeps its text.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    stream = io.BytesIO()
    with rc_context({"svg.hashsalt": "selfrag", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in another script
        _settle(figure)
        figure.savefig(stream, format=suffix.removeprefix("."), dpi=_DOTS, metadata=dates)
    return stream.getvalue()


def _settle(figure: Any) -> None:
    """Lay the figure out once and round: the solver's last digits differ from time to time."""
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(value, 4) for value in axes.get_position().bounds])


@dataclass(frozen=True, slots=True)
class Point:
    """A setting or a system between a price and a gain."""

    price: float  # to be low, such as the retrieval rate
    gain: float  # to be high, such as accuracy

    def beats(self, other: Point) -> bool:
        """At least as good in both, and better in one."""
        return self.price <= other.price and self.gain >= other.gain and self != other


def front(points: Mapping[str, Point]) -> list[str]:
    """Names of the points that none beats, cheapest first; of equal ones each is in."""
    kept = [name for name, one in points.items() if not any(other.beats(one) for other in points.values())]
    return sorted(kept, key=lambda name: points[name].price)
