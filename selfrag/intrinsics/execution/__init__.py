"""Executors: what runs the requests of codecs on a model. Importing this package imports no engine.

`engine.EngineExecutor` scores and generates on any engine of this library; `endpoint.EndpointExecutor` asks any
OpenAI-compatible server. `selfrag.intrinsics.Library` makes the right one for a model and its adapters.
"""
