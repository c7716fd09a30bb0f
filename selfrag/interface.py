"""What plug-ins may use of selfrag: names that stay where they are. `docs/reference/extending.md` documents each.

The extensions of this repository use this module too, so that what is behind it can move. `interface.pyi` lists the
names; a name's own module is imported when the name is first used.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from selfrag.common.own_packages import own_name

_LISTED = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_HOMES = {
    name: module
    for module, name in re.findall(r"(?m)^from (\S+) import (\w+)", _LISTED)
}
"""The module that defines each name."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(own_name(_HOMES[name])), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
