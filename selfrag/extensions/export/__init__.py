"""Finished runs in the formats of inspect-ai and lm-eval: `selfrag eval export`."""
