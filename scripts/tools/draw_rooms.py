"""Draw which room imports which, from the imports themselves, into docs/rooms.svg.

    python scripts/tools/draw_rooms.py           # write the picture
    python scripts/tools/draw_rooms.py --check   # exit code 1 where the picture shows another one

A room is a package or a module right below `selfrag`, `critic` as a whole, or `retrieval` as a whole. An arrow that
follows from other arrows is left out. Imports inside functions count.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grimp
import networkx

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "rooms.svg"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 132, 30, 24, 46
STYLE = (
    "svg { color: #222; background: #fff; font: 14px system-ui, sans-serif } rect { fill: #fff; stroke: currentColor }"
    " text { fill: currentColor; text-anchor: middle } path { fill: none; stroke: currentColor; opacity: .55 }"
    " @media (prefers-color-scheme: dark) { svg { color: #ddd; background: #1e2129 } rect { fill: #1e2129 } }"
)
EVERYWHERE = {"selfrag", "common", "__main__"}
"""Rooms that are left out: the floor, which nearly everything uses, and the front door."""


def room(module: str) -> str:
    """Return the room of a module."""
    parts = module.split(".")
    return parts[0] if parts[0] != "selfrag" or len(parts) == 1 else parts[1]


def arrows_between_rooms() -> networkx.DiGraph:
    """Return the rooms, with the arrows that do not follow from others."""
    imports = grimp.build_graph("selfrag", "critic", "retrieval", cache_dir=None)
    graph = networkx.DiGraph()
    for module in imports.modules:
        for target in imports.find_modules_directly_imported_by(module):
            here, there = room(module), room(target)
            if here != there and EVERYWHERE.isdisjoint((here, there)):
                graph.add_edge(here, there)
    return networkx.transitive_reduction(graph)


def levels_of(graph: networkx.DiGraph) -> list[list[str]]:
    """Return the rooms by level, those that nobody imports first; each stands near the rooms that import it."""
    level: dict[str, int] = {}
    for name in sorted(
        networkx.topological_sort(graph),
        key=lambda name: len(networkx.ancestors(graph, name)),
    ):
        level[name] = max(
            (level[above] + 1 for above in graph.predecessors(name)), default=0
        )
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for name in sorted(level):
        rows[level[name]].append(name)
    place: dict[str, float] = {}

    def middle(name: str) -> tuple[float, str]:
        above = [place[importer] for importer in graph.predecessors(name)]
        return (sum(above) / len(above) if above else 0.5, name)

    for row in rows:
        row.sort(key=middle)
        place.update(
            {name: (number + 0.5) / len(row) for number, name in enumerate(row)}
        )
    return rows


def picture() -> str:
    """Return the rooms and their arrows as SVG."""
    graph = arrows_between_rooms()
    rows = levels_of(graph)
    width = max(map(len, rows)) * (BOX_WIDTH + GAP_X) + GAP_X
    height = len(rows) * (BOX_HEIGHT + GAP_Y)
    corner: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        for index, name in enumerate(row):
            corner[name] = (
                (index + 0.5) * width / len(row) - BOX_WIDTH / 2,
                number * (BOX_HEIGHT + GAP_Y) + GAP_Y / 2,
            )
    parts = []
    for here, there in sorted(graph.edges):
        x1, y1 = corner[here][0] + BOX_WIDTH / 2, corner[here][1] + BOX_HEIGHT
        x2, y2 = corner[there][0] + BOX_WIDTH / 2, corner[there][1]
        middle = (y1 + y2) / 2
        line = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2 - 2:.0f}"
        parts.append(
            f'<path d="{line}" marker-end="url(#end)"><title>{here} imports {there}</title></path>'
        )
    for name, (x, y) in sorted(corner.items()):
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
        )
        parts.append(
            f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 20:.0f}">{name}</text>'
        )
    arrow = '<marker id="end" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
    arrow += '<path d="M1 1 L7 4 L1 7" stroke="currentColor"/></marker>'
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>Which room imports which</title>'
    return (
        "\n".join(
            [head, f"<style>{STYLE}</style><defs>{arrow}</defs>", *parts, "</svg>"]
        )
        + "\n"
    )


def main() -> int:
    """Write the picture, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit code 1 where the page is out of date",
    )
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    drawn = picture()
    if args.check:
        same = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == drawn
        if not same:
            print(f"{PICTURE} is out of date: run python scripts/tools/draw_rooms.py")
        return int(not same)
    PICTURE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
