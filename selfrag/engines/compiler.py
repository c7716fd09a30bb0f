"""Whether torch can compile a kernel for the CPU here. Knows no engine.

vLLM compiles one small function, which counts ranks, with the first log-probability asked for. Many machines have no
C++ compiler or lack Python's headers (Debian's `python3-dev`); there the engine would die in the middle of a question.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def has_compiler() -> bool:
    """True if both the C++ compiler that torch would call and `Python.h` are there."""
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.is_file()
