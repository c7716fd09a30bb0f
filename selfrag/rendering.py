"""Answers for people: plain text for a terminal, HTML for a notebook, and a trace drawn as an SVG tree."""

from __future__ import annotations

import html as markup
from textwrap import shorten, wrap

from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.trace import ROOT, Node, Status, Trace
from selfrag.pages import inert, visible
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, GROUPS
from selfrag.untrusted import printable

BOX, GAP_X, GAP_Y, LINE = (300, 96), 70, 14, 15
COLOURS = {
    Status.KEPT: "#dcefdc",
    Status.FINISHED: "#dcefdc",
    Status.PRUNED: "#f2f2f2",
    Status.MERGED: "#f2f2f2",
    Status.DUPLICATE: "#f7ecd4",
    Status.EMPTY: "#f7ecd4",
    Status.FORBIDDEN: "#f7dada",
    Status.FAILED: "#f7dada",
}


def svg(trace: Trace, *, name: str = "node") -> str:
    """Draw the tree from left to right; the answer's path has thick borders.

    Each box shows the evidence, the text, IsRel / IsSup / IsUse scores, the segment score and what became of it.

    Args:
        trace: all texts in it are untrusted.
        name: begins the ids of the boxes, which must differ between the trees of a page.
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
        parts.append(_box(box, node.depth, rows[node.id], _lines(node), fill=COLOURS[node.status], thick=thick))
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
    free = 0

    def place(parent: int) -> None:
        nonlocal free
        below = children.get(parent, [])
        for child in below:
            place(child)
        if below:
            rows[parent] = (rows[below[0]] + rows[below[-1]]) / 2
        else:
            rows[parent] = free
            free += 1

    place(ROOT)
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


TEXT, NAME = 20_000, 200
"""Characters that are shown of a text, and of a title or an id."""
LEFT = "style='text-align:left'"


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


def plain(answer: Answer) -> str:
    """Text with numbered citations, why it ends early if it does, then the cited passages."""
    if answer.error is not None:
        return cut(f"error: {answer.error}")
    cited = [f"[{i}] {cut(passage.title or passage.id, NAME)}" for i, passage in enumerate(answer.citations, 1)]
    partial = [] if answer.partial is None else [cut(f"partial: {answer.partial}")]
    return "\n".join([printable(spoken(answer)), *partial, *cited])


def html(answer: Answer) -> str:
    """A small table: each segment with its citation and judgments; passages unfold. Needs no style sheet or script."""
    if answer.error is not None:
        return f"<p><b>error</b>: {escape(answer.error)}</p>"
    numbers = answer.numbers
    rows = []
    for s in answer.segments:
        mark = f" <sup>[{numbers[s.citation.key]}]</sup>" if s.citation else ""
        cells = f"<td {LEFT}>{escape(s.text)}{mark}</td><td {LEFT}>{escape(reflections(s))}</td><td>{s.score:.3f}</td>"
        rows.append(f"<tr>{cells}</tr>")
    passages = []
    for passage in answer.citations:
        heading = f"[{numbers[passage.key]}] {escape(passage.title or passage.id, NAME)}"
        passages.append(f"<details><summary>{heading}</summary><p>{escape(passage.text)}</p></details>")
    head = "<tr><th>segment</th><th>reflections</th><th>score</th></tr>"
    said = "" if rows else f"<p>{escape(spoken(answer))}</p>"
    if answer.partial is not None:
        said += f"<p><b>partial</b>: {escape(answer.partial)}</p>"
    return f"<p><b>{escape(answer.question)}</b></p>{said}<table>{head}{''.join(rows)}</table>{''.join(passages)}"


def escape(text: str, most: int = TEXT) -> str:
    """Text of others for a page, cut where it is long."""
    return markup.escape(cut(text, most))


def cut(text: str, most: int = TEXT) -> str:
    """Text of others for people: nothing in it that cannot be shown, and where it is long, how much is left out."""
    left_out = len(text) - most
    return printable(text if left_out <= 0 else f"{text[:most]} ... ({left_out:,} characters more)")
