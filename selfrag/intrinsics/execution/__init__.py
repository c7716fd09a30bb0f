"""Executors, which run the requests of codecs: on any engine of this library, or on an OpenAI-compatible server."""
