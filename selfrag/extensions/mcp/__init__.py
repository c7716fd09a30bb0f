"""Answers with citations, searches and judgments for agents, over the Model Context Protocol.

Registers `selfrag mcp`, in the group `selfrag.commands`. Page: `docs/guides/mcp.md`.
"""
