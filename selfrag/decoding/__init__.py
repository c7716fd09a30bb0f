"""Decoding as generator functions that never touch a model: requests out, results in, an answer at the end. Pure."""
