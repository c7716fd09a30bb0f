"""Reflection: labels, the vocabulary of one tokenizer, judgments, weights. Pure; the same interface for every critic."""
