"""Count what makes code hard to read, room by room; no count may rise above its ceiling.

    python scripts/tools/check_plain.py             # a row a room, count/ceiling; exit code 1 where a count is above it
    python scripts/tools/check_plain.py --places    # and each place, to mend it
    python scripts/tools/check_plain.py --refresh   # lower the ceilings to the counts

Ruff has no rule for these. The ceilings stand in `plain.toml`.

- packed: statements with three or more conditional expressions and comprehensions
- no verb: docstrings of functions that begin with no verb
- vague: identifiers that do not say what they hold
- twice: public types of the product whose name another module defines as well
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from scripts.command import command

ROOT = Path(__file__).parents[2]
CEILINGS = Path(__file__).with_name("plain.toml")
CHECKS = ("packed", "no verb", "vague", "twice")
PRODUCT = ("critic", "retrieval", "selfrag")
NO_VERB = re.compile(
    r"(A|All|Also|An|And|Any|As|At|Both|By|Each|Every|For|From|How|If|In|Its|No|Not|None|Nothing|Of|On|One|Only|Or|That"
    r"|The|Their|These|This|Those|Three|To|Two|Up|What|When|Where|Whether|Who|Why|With|Without)\b"
)
VAGUE = re.compile(
    "found|one|other|given|own|whole|plain|named|rest|asked|wanted|held|settled|begun"
)
TYPE_NAME = re.compile("([A-Z]+[a-z0-9]+)+")
EXPRESSIONS = (ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def room_of(path: Path) -> str:
    """Return the room of a file: a folder of `selfrag`, or its top folder."""
    parts = path.parts
    return "/".join(parts[:2]) if parts[0] == "selfrag" and len(parts) > 2 else parts[0]


def findings_in(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield the check, the line and the reason of each place of one module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            count = sum(isinstance(child, EXPRESSIONS) for child in ast.walk(node))
            if count > 2:
                yield (
                    "packed",
                    node.lineno,
                    f"{count} conditional expressions and comprehensions in one statement",
                )
        elif isinstance(node, FUNCTIONS):
            if first := NO_VERB.match(ast.get_docstring(node) or ""):
                yield (
                    "no verb",
                    node.lineno,
                    f"the docstring of {node.name} begins with {first[0]!r}",
                )
        elif isinstance(node, ast.Name) and VAGUE.fullmatch(node.id):
            yield "vague", node.lineno, f"the name {node.id!r}"
        elif isinstance(node, ast.arg) and VAGUE.fullmatch(node.arg):
            yield "vague", node.lineno, f"the parameter {node.arg!r}"


def types_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the public classes and aliases of types of a module, with their lines."""
    for node in tree.body:
        name = ""
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.AnnAssign):
            name = ast.unparse(node.target)
        elif isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
        if TYPE_NAME.fullmatch(name):
            yield name, node.lineno


def collect() -> dict[tuple[str, str], list[str]]:
    """Return the places of each room and check."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    types: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for top in (*PRODUCT, "scripts", "tests"):
        for file in sorted((ROOT / top).rglob("*.py")):
            path = file.relative_to(ROOT)
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for check, line, reason in findings_in(tree):
                if (top, check) != ("tests", "no verb"):  # a test says what is so
                    places[room_of(path), check].append(f"{path}:{line}: {reason}")
            if top in PRODUCT:
                for name, line in types_of(tree):
                    types[name].append((path, line))
    for name, definitions in types.items():
        for path, line in definitions[1:]:
            places[room_of(path), "twice"].append(
                f"{path}:{line}: {definitions[0][0]} defines {name}, too"
            )
    return places


@command
def main(*, places: bool = False, refresh: bool = False) -> int:
    """Compare the counts with their ceilings, and print them.

    Args:
        places: print each place.
        refresh: lower the ceilings to the counts.
    """
    findings = collect()
    ceilings = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    lines = ["# Counts of check_plain.py, which may only fall."]
    above = False
    print(f"{'room':22}" + "".join(f"{check:>14}" for check in CHECKS))
    for room in sorted(ceilings.keys() | {room for room, _ in findings}):
        row, kept = f"{room:22}", []
        for check in CHECKS:
            count = len(findings[room, check])
            ceiling = ceilings.get(room, {}).get(check, 0)
            above |= count > ceiling
            row += f"{f'{count}/{ceiling}':>13}{'!' if count > ceiling else ' '}"
            kept.append(f'"{check}" = {min(count, ceiling)}')
            if places:
                print(*findings[room, check], sep="\n")
        print(row)
        lines.append(f'"{room}" = {{ {", ".join(kept)} }}')
    if refresh:
        CEILINGS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if above:
        print("a count is above its ceiling (!); mend places that --places prints")
    return int(above)


if __name__ == "__main__":
    main()
