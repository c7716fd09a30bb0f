"""Engines: sources of next tokens behind one small protocol (`base.Engine`). Importing this package imports no engine.

`base` holds the protocol, `select` picks an engine for a machine, and `vllm`, `http`, `transformers` and `scripted` are
the engines themselves; each imports its library only when it is loaded.
"""
