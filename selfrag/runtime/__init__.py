"""What serves decoders: the driver, the sessions of engines with their threads, and calls of many questions."""
