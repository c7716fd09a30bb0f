"""Reads PDF files: text in reading order, tables, bookmarks, and scans by tesseract."""
