"""`SelfRAG` and its retrievers in LangChain, LlamaIndex and Haystack, a module each; none is imported here.

Registers the three modules, in the group `selfrag.frameworks`. Page: `docs/guides/frameworks.md`.
"""
