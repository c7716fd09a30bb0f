"""Evaluation: tasks, metrics, the runner, intervals, comparison and reports."""
