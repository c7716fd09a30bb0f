"""The interface for plug-ins: complete, documented, and used by what stands above the core; exceptions only get fewer.

`interface_exceptions.txt` lists what extensions, experiments, `critic` and the evaluation import from elsewhere.
`python tests/test_interface.py` takes the lines out that are not needed any more.
"""

import ast
import re
from pathlib import Path

import pytest

from selfrag import interface

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("interface_exceptions.txt")
ROOMS = ("critic", "selfrag/evaluation", "selfrag/experiments", "selfrag/extensions")
OURS = ("selfrag", "retrieval", "critic")


def imports_of(path):
    """Module and name of each import of ours, functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def exceptions():
    """What each room, or each extension, imports that is neither its own nor in the interface."""
    lines = set()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            place, own = room, room.replace("/", ".")
            if room == "selfrag/extensions":
                place = path.relative_to(ROOT).parent.as_posix()
            for module, name in imports_of(path):
                ours = module.split(".")[0] in OURS and not f"{module}.".startswith(
                    f"{own}."
                )
                known = interface._HOMES.get(name) if place == room else None
                if ours and module not in ("selfrag.interface", known):
                    lines.add(f"{place} {module} {name}".rstrip())
    return lines


def test_every_name_is_there_and_documented():
    stub = Path(interface.__file__).with_suffix(".pyi")
    listed = [f"{home} {name}" for name, home in interface._HOMES.items()]
    assert listed == [f"{home} {name}" for home, name in imports_of(stub)]
    for name in interface.__all__:
        assert getattr(interface, name) is not None
    page = (ROOT / "docs/reference/extending.md").read_text()
    documented = "".join(re.findall(r"^\| (`.*?) \|", page, re.M))
    assert set(re.findall(r"`(\w+)", documented)) == set(interface.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = interface.nothing


def test_no_new_import_passes_the_interface_by():
    listed = LIST.read_text().splitlines()
    assert sorted(exceptions() - set(listed)) == []
    assert listed == sorted(listed)


if __name__ == "__main__":
    listed = set(LIST.read_text().splitlines())
    LIST.write_text("".join(f"{line}\n" for line in sorted(listed & exceptions())))
