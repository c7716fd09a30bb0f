"""Self-interpretation for supported question answering: a grid of prompts, and tests of what models say of themselves.

Source: "Explaining LLM-based Question Answering via the self-interpretations of a model" (Garigliotti).
"""
