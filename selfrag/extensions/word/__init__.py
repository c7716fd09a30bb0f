"""Reads Word files (`.docx`, `.docm`, `.dotx`, `.dotm`) in one pass over their XML."""
