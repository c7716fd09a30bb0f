"""Lets the tests of the evaluation import `student_cases`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "student"))
