"""Decoders as generators: each yields requests, receives results, and returns an answer. They run no model."""
