"""`selfrag mcp`: answers with citations, searches and judgments for agents, over the Model Context Protocol."""
