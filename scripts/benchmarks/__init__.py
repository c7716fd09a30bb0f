"""Benchmarks of a machine that is at hand for some minutes only: steps with time limits, and one report."""
