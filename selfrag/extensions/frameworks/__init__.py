"""`SelfRAG` and its retrievers in LangChain, LlamaIndex and Haystack, a module each; none is imported here."""
