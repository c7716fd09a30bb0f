"""The model of Granite Switch checkpoints, which have adapters inside, for the transformers engine."""

from __future__ import annotations

import importlib

from selfrag.interface import Architecture, EngineError


def register(name: str) -> None:
    """Import the package that teaches the type to transformers.

    Raises:
        EngineError: the package is not installed.
    """
    try:
        importlib.import_module("granite_switch.hf")
    except ImportError as error:
        raise EngineError(
            f"model {name!r} is a Granite Switch; run: pip install 'granite-switch[hf]'"
        ) from error


GRANITE_SWITCH = Architecture(register, alone=True)
