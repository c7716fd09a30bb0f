"""Runs in the formats of other evaluation tools: logs of inspect-ai, results and samples of lm-eval. Runs nothing."""
