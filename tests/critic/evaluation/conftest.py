"""Lets the tests of the evaluation import `student_cases` and `full_disk`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "student"))
