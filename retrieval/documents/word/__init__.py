"""Reads Word files (`.docx`, `.docm`, `.dotx`, `.dotm`) in one pass over their XML."""

from retrieval.documents.word.reader import read_word

__all__ = ["read_word"]
