"""Benchmarks. Each states what it compares; `measure` times, pairs and prints, `workload` has the questions."""
