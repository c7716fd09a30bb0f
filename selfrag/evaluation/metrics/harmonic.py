"""The harmonic mean of two shares. Pure."""

from __future__ import annotations


def harmonic(one: float, other: float) -> float:
    """Harmonic mean, such as the F1 of a precision and a recall; 0 where both are 0."""
    return 2 * one * other / (one + other) if one + other else 0.0
