"""Objects found by name: an entry point that a package registers, or `module:name`."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from selfrag.common.errors import UserError
from selfrag.common.own_packages import PACKAGES, own_name


def registered(group: str, name: object) -> Any:
    """Return what the entry point of a group names; None if there is none of that name."""
    points = entry_points(group=group, name=str(name))
    if points:
        return load_point(next(iter(points)))
    return None


def load_point(point: EntryPoint) -> Any:
    """Return what an entry point names, one of ours also where another package has its name."""
    ours = point.dist is not None and point.dist.name == "selfrag"
    if ours:
        point = EntryPoint(point.name, own_name(point.value), point.group)
    return point.load()


def load_registered(group: str, name: str) -> Any:
    """Return what the entry point of a group is called by that name; None if there is none.

    Raises:
        UserError: the entry point cannot be loaded.
    """
    try:
        return registered(group, name)
    except Exception as error:  # whatever the other package raises
        raise UserError(
            f"the entry point {name!r} of {group} cannot be loaded: {error!r:.200}"
        ) from error


def load_present(group: str, name: str) -> Any:
    """Return the same as `load_registered`; None also if the module of the entry point does not exist.

    The metadata of an installed package may outlive its files, such as those of an extension that was deleted.
    """
    try:
        return load_registered(group, name)
    except UserError as error:
        missing = (
            error.__cause__.name
            if isinstance(error.__cause__, ModuleNotFoundError)
            else None
        )
        modules = [point.module for point in entry_points(group=group, name=name)]
        if missing is not None and any(
            f"{module}.".startswith(f"{missing}.") for module in modules
        ):
            return None
        raise


def names(group: str) -> list[str]:
    """Return the names that the entry points of a group have, sorted."""
    return sorted(point.name for point in entry_points(group=group))


def plugin(group: str, name: str) -> Any:
    """Return what an entry point of a group names, or `module:name`; the working directory is searched, too.

    Raises:
        UserError: there is no such entry point, module or name.
    """
    value = registered(group, name)
    if value is not None:
        return value
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(names(group)) or "none"
        raise UserError(
            f"no entry point {name!r} of {group}, which has {known}; give one of them, or MODULE:NAME"
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        imported = importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise UserError(f"{name}: the module cannot be imported: {error}") from error
    if not hasattr(imported, attribute):
        if module.partition(".")[0] in PACKAGES:
            raise UserError(
                f"{name}: selfrag has a package of that name; call your module otherwise"
            )
        raise UserError(f"{name}: {module} has no {attribute!r}")
    return getattr(imported, attribute)
