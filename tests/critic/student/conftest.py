"""Lets the tests of the student import `student_cases`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
