"""Intrinsics on the engine that decodes: which adapters to load with it, and the reflectors afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from selfrag.engines.base import Engine
from selfrag.errors import UserError
from selfrag.intrinsics.catalog import find
from selfrag.intrinsics.chat import DIALECT
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.intrinsics.model_library import Library, check_cards
from selfrag.intrinsics.reflectors.reflecting import Reflecting
from selfrag.loading import shipped_adapters

Named: TypeAlias = Sequence[str] | Mapping[str, str | Path | None]
"""Names of intrinsics, or names with the folder of each adapter (None for the base model with a prompt)."""


def adapters_of(intrinsics: Named, model: str | Path) -> dict[str, str]:
    """Folders of the adapters to load, by intrinsic; a registered model brings those that it has.

    Raises:
        UserError: an unknown intrinsic, or an adapter that was trained with other prompts.
    """
    folders = _folders(intrinsics, model)
    check_cards(folders, DIALECT)
    return folders


def _folders(intrinsics: Named, model: str | Path) -> dict[str, str]:
    if isinstance(intrinsics, str):
        raise UserError(f"intrinsics={intrinsics!r}: give a list of names")
    names = [find(name).name for name in intrinsics]
    if isinstance(intrinsics, Mapping):
        given = zip(names, intrinsics.values(), strict=True)
        return {name: str(folder) for name, folder in given if folder is not None}
    return {name: str(folder) for name, folder in shipped_adapters(model).items() if name in names}


def on_engine(engine: Engine, tokenizer: Any, intrinsics: Named) -> tuple[Reflecting, ...]:
    """Reflectors on an engine: with an adapter where it has one of that name, else with a prompt on the base model.

    Raises:
        UserError: an adapter that was asked for is not on the engine.
    """
    loaded = engine.limits.adapters
    wanted = dict(intrinsics) if isinstance(intrinsics, Mapping) else dict.fromkeys(intrinsics)
    adapters: dict[str, str] = {}
    for given, folder in wanted.items():
        name = find(given).name
        found = next((one for one in (name, str(folder)) if one in loaded), None)
        if found is not None:
            adapters[name] = found
        elif folder is not None:
            there = ", ".join(sorted(loaded)) or "none"
            raise UserError(f"the engine has no adapter {str(folder)!r} for {name}; it has: {there}")
    library = Library(EngineExecutor(engine, tokenizer), adapters)
    return tuple(Reflecting(library[name]) for name in wanted)
