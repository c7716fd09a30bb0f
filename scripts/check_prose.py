"""Runs `tools/check_prose.py`, for programs that still call it by its old place."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parent / "tools" / "check_prose.py"), run_name="__main__")
