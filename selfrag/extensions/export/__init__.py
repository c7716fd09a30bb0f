"""Finished runs as logs of inspect-ai.

Registers `selfrag eval export`, in the group `selfrag.eval`. Page: `docs/guides/running.md`.
"""
