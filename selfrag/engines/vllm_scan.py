"""Keeps llvmlite from stopping vLLM. Knows one private table of one library, and does nothing where that is missing.

On a CPU vLLM reads `vars()` of everything that every imported module holds. llvmlite's handle on its shared library
answers with an object that is no dictionary, so a process that imported numba first could load no model.
"""

from __future__ import annotations

import sys


def spare_llvmlite() -> None:
    """Give llvmlite's handle an empty `__dict__`, if llvmlite is imported."""
    handle = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    if handle is not None and isinstance(table := getattr(handle, "_fntab", None), dict):
        table["__dict__"] = {}
