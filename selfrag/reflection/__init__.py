"""Reflection: labels, the vocabulary of one tokenizer, judgments, weights. Pure; one interface for every critic."""
