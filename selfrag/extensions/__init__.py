"""Guests: each folder is one capability that the core does not know, registered by entry points as a stranger's is."""
