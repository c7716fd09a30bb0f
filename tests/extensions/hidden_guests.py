"""Hides extensions from imports, and imports all modules of the others: a plug-in of pytest, and of child processes."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from importlib import metadata
from importlib.abc import MetaPathFinder

ROOM = "selfrag.extensions"


class Hidden(MetaPathFinder):
    """Finds nothing, and lets nobody else find the modules of some packages."""

    def __init__(self, packages):
        self.packages = tuple(packages)

    def find_spec(self, fullname, path=None, target=None):
        if any(f"{fullname}.".startswith(f"{package}.") for package in self.packages):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def hide(*packages):
    """Hide packages that nobody imported yet."""
    assert not set(packages) & set(sys.modules)
    sys.meta_path.insert(0, Hidden(packages))


def import_all(package, without=()):
    """Import every module of a package, but those that need a package of others that is not installed."""
    count = 0
    for module in pkgutil.walk_packages(
        importlib.import_module(package).__path__, f"{package}."
    ):
        if module.name.startswith(without) or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] in (
                "selfrag",
                "critic",
                "retrieval",
            ):
                raise
        count += 1
    return count


def pytest_configure():
    """Leave only the guest that `ONLY_GUEST` names, and what it registers."""
    guest = os.environ["ONLY_GUEST"]
    registered = metadata.entry_points

    def points_left(**where):
        points = registered(**where)
        if not where.get("group", "").startswith("selfrag."):
            return points
        modules = {point: f"{point.module}." for point in points}
        return metadata.EntryPoints(
            point
            for point, module in modules.items()
            if not module.startswith(f"{ROOM}.")
            or module.startswith(f"{ROOM}.{guest}.")
        )

    metadata.entry_points = points_left
    import selfrag

    room = f"{selfrag.__path__[0]}/extensions"
    hide(
        *(
            f"{ROOM}.{entry.name}"
            for entry in os.scandir(room)
            if entry.is_dir() and entry.name != guest
        )
    )
    import_all(f"{ROOM}.{guest}")
