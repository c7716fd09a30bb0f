"""Helpers of other rooms, and those beside the tests here, are importable from every test of experiments."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [
    *map(
        str,
        (
            TESTS / "intrinsics",
            TESTS / "decoding",
            TESTS / "evaluation",
            Path(__file__).parent,
        ),
    ),
    str(Path(__file__).parent / "self_interpretation"),
]
