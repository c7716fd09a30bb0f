"""Reads Word files (`.docx`, `.docm`, `.dotx`, `.dotm`) in one pass over their XML.

Registers these four formats, in the group `selfrag.documents`. Page: `docs/guides/documents.md`.
"""
