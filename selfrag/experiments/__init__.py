"""Tasks, metrics and reports. Edges that run a model import it inside their functions."""
