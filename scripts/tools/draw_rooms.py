"""Draw which room imports which, from the imports themselves, into docs/explanation/architecture.md.

    python scripts/tools/draw_rooms.py           # write the picture
    python scripts/tools/draw_rooms.py --check   # exit code 1 where the page shows another one

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
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- rooms: made by scripts/tools/draw_rooms.py -->\n", "<!-- end of rooms -->"
EVERYWHERE = {"selfrag", "common", "__main__"}
"""Rooms that are left out: the floor, which nearly everything uses, and the front door."""


def room(module: str) -> str:
    """The room of a module."""
    parts = module.split(".")
    return parts[0] if parts[0] != "selfrag" or len(parts) == 1 else parts[1]


def picture() -> str:
    """The rooms and their arrows in Mermaid's language."""
    imports = grimp.build_graph("selfrag", "critic", "retrieval", cache_dir=None)
    graph = networkx.DiGraph()
    for module in imports.modules:
        for target in imports.find_modules_directly_imported_by(module):
            here, there = room(module), room(target)
            if here != there and EVERYWHERE.isdisjoint((here, there)):
                graph.add_edge(here, there)
    arrows = sorted(networkx.transitive_reduction(graph).edges)
    return "```mermaid\nflowchart TD\n" + "".join(f"  {here} --> {there}\n" for here, there in arrows) + "```\n"


def main() -> int:
    """Write the picture, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is out of date")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + picture() + END + after
    if args.check:
        if page != wanted:
            print(f"{PAGE} is out of date: run python scripts/tools/draw_rooms.py")
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
