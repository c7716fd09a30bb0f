"""Distilling a critic, and using it to write reflection tokens into training data. Imports `selfrag`."""
