"""Scripted models for the frameworks: `served` of the server's tests is importable."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "serving"), str(TESTS / "decoding")]
