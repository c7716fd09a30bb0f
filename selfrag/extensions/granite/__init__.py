"""Granite and mellea: the wire formats of their published adapters, and where these adapters are."""
