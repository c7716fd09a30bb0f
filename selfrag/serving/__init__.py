"""`selfrag serve`: an HTTP server that speaks the OpenAI API, cites, and shows the tree of candidates on a page."""
