"""A trace as an SVG tree."""

from __future__ import annotations

from textwrap import shorten, wrap

from selfrag.common.untrusted import cut, inert
from selfrag.decoding.trace import ROOT, Node, Status, Trace
from selfrag.reflection.labels import CRITIQUES

BOX, GAP_X, GAP_Y, LINE = (300, 96), 70, 14, 15
FILLS = {
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

    Each box shows the evidence, the text, IsRel / IsSup / IsUse scores, the segment score and what became of it. Ids of
    the boxes begin with `name`, which must differ between the trees of a page. All texts are untrusted.
    """
    chosen = {node.id for node in trace.path(trace.best)}
    rows = _rows(trace)
    height = max(rows.values(), default=0) * (BOX[1] + GAP_Y) + BOX[1] + 2 * GAP_Y
    width = (max((node.depth for node in trace.nodes), default=0) + 1) * (
        BOX[0] + GAP_X
    ) + GAP_Y
    parts = [
        _box(
            f"{name}{ROOT}", 0, rows[ROOT], _question(trace), fill="#dfe8f7", thick=True
        )
    ]
    for node in trace.nodes:
        thick, row = node.id in chosen, rows[node.id]
        depth = 0 if node.parent == ROOT else node.depth - 1
        parts.append(_edge(depth, rows[node.parent], row, thick=thick))
        parts.append(
            _box(
                f"{name}{node.id}",
                node.depth,
                row,
                _lines(node),
                fill=FILLS[node.status],
                thick=thick,
            )
        )
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


_EDGE_WIDTH = {False: "1", True: "2.5"}
_BOX_WIDTH = {False: "0.8", True: "2.5"}
"""Widths of lines; those of the best path are thick."""


def _edge(depth: int, start: float, end: float, *, thick: bool) -> str:
    x1, y1 = _corner(depth, start)
    x2, y2 = _corner(depth + 1, end)
    middle = BOX[1] / 2
    return (
        f"<path d='M{x1 + BOX[0]:.0f} {y1 + middle:.0f} C{x1 + BOX[0] + GAP_X / 2:.0f} {y1 + middle:.0f},"
        f"{x2 - GAP_X / 2:.0f} {y2 + middle:.0f},{x2:.0f} {y2 + middle:.0f}' fill='none' stroke='#888' "
        f"stroke-width='{_EDGE_WIDTH[thick]}'/>"
    )


def _box(
    key: str, depth: int, row: float, lines: list[str], *, fill: str, thick: bool
) -> str:
    x, y = _corner(depth, row)
    text, weight = "", 700  # the first line is bold
    for index, line in enumerate(lines):
        place = f"x='{x + 8:.0f}' y='{y + 16 + index * LINE:.0f}'"
        text += f"<text {place} font-weight='{weight}'>{inert(line)}</text>"
        weight = 400
    return (
        f"<g id='{key}'><rect x='{x:.0f}' y='{y:.0f}' width='{BOX[0]}' height='{BOX[1]}' rx='5' fill='{fill}' "
        f"stroke='#555' stroke-width='{_BOX_WIDTH[thick]}'/>{text}</g>"
    )


def _question(trace: Trace) -> list[str]:
    first = next(
        (decision for decision in trace.decisions if decision.after == ROOT), None
    )
    why = "not decided"
    if first is not None:
        why = cut(f"{first.action}: {first.reason}")
    return [
        *wrap(shorten(cut(trace.question), 130, placeholder=" .."), 48)[:4],
        why,
    ]


def _lines(node: Node) -> list[str]:
    source = {
        "none": "without evidence",
        "continue": "same evidence",
        "passage": "evidence",
    }[node.branch]
    title = source
    if node.passage:
        title = cut(f"{source}: {node.passage.title or node.passage.id}")
    scores = []
    for labels in CRITIQUES:
        judgment = node.judgments.get(labels.role)
        score = f"{judgment.score:.2f}" if judgment else "-"
        scores.append(f"{labels.role} {score}")
    body = wrap(shorten(cut(node.text or node.finish), 100, placeholder=" .."), 50)[:2]
    return [
        shorten(title, 48, placeholder=" .."),
        *body,
        ", ".join(scores),
        f"score {node.score:.3f}, {node.status}",
    ]
