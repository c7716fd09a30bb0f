"""Finished runs in the formats of inspect-ai and lm-eval.

Registers `selfrag eval export`, in the group `selfrag.eval`. Page: `docs/guides/running.md`.
"""
