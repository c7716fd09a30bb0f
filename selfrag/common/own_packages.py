"""Keeps a project's own `retrieval` or `critic` apart from the packages of this distribution.

Python finds what lies beside a script first, and a module in a RAG project is often called `retrieval`. Where such a
name leads to somebody else's file, that file keeps the name. Our package is then `selfrag.retrieval`, and imports of
`retrieval` in our modules lead there: each module gets an `__import__` of its own. In the usual case no name is taken,
and nothing is changed.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("retrieval", "critic")
_ROOT = Path(__file__).parents[2]
"""The folder in which our packages lie, in a checkout as in site-packages."""


@cache
def taken_names() -> frozenset[str]:
    """Return which of our packages another file hides in this process."""
    return frozenset(name for name in PACKAGES if _is_taken(name))


def _is_taken(name: str) -> bool:
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
    else:
        spec = find_spec(name)
        file = None if spec is None else spec.origin
    return (
        file is None or Path(file).resolve() != (_ROOT / name / "__init__.py").resolve()
    )


def own_name(module: str) -> str:
    """Return the name under which a module of ours is imported in this process."""
    if module.partition(".")[0] in taken_names():
        return f"selfrag.{module}"
    return module


def separate_packages() -> None:
    """Let our modules import each other whatever else is called `retrieval` or `critic`."""
    if taken_names():
        sys.meta_path.insert(0, _OwnFinder())


class _OwnFinder:
    """Finds our modules; a package whose name is taken is found as if it lay below `selfrag`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, child = name.partition(".")
        if not child or parent not in {"selfrag", *PACKAGES} - taken_names():
            return None
        if parent == "selfrag" and child in taken_names():
            path = [str(_ROOT)]
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _OwnLoader(spec.loader.name, spec.loader.path)
        return spec


class _OwnLoader(SourceFileLoader):
    """Runs a module whose imports of a taken name lead to our package."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of a module."""
        module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _import}
        super().exec_module(module)


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names of `__import__`
    locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    package = name.partition(".")[0]
    if level or package not in taken_names():
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    module = builtins.__import__(f"selfrag.{name}", globals, locals, fromlist or (), 0)
    if fromlist:
        return module
    return sys.modules[f"selfrag.{package}"]
