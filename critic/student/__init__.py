"""The critic as a small language model: its prompt, its training examples, and the scorer that asks it."""
