"""Reads PDF files: text in reading order, tables, bookmarks, and scans by tesseract.

Registers the format `pdf`, in the group `selfrag.documents`. Page: `docs/guides/documents.md`.
"""
