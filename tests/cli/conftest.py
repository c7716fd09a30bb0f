"""Helpers of other rooms are importable from every test of commands."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [
    str(TESTS / "experiments/self_interpretation"),
    str(TESTS / "intrinsics"),
]
