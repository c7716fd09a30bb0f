"""Learning rate over a run: linear warm-up, then linear decay to zero. Pure."""

from __future__ import annotations


def rate(step: int, total: int, warmup: int) -> float:
    """Factor on the peak learning rate.

    Args:
        step: number of the step about to be made, from 0.
        total: steps of the run.
        warmup: steps until the peak.
    """
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (total - step) / max(1, total - warmup))
