"""One HTML page about a file of training rows: statistics, plots and sampled rows with how they were made."""

from critic.inspect.page import Inspection, inspect_rows, render

__all__ = ["Inspection", "inspect_rows", "render"]
