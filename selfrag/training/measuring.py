"""How fast this machine multiplies matrices, in a second: what a dry run's time is made of. Knows no model.

On CPUs as training computes, several workers of one thread each. What each worker's thread was given of a core is
measured beside the clock, so that the machine's own speed comes out also while other work runs on it.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

_SIDE = 1024
_PRODUCT = 2 * _SIDE**3  # floating-point operations
_LEAST = 3  # products of a worker, however little of a core it gets


@dataclass(frozen=True, slots=True)
class Rate:
    """Floating-point operations a second of matrix products, all workers together.

    Attributes:
        alone: with the workers' cores to themselves.
        now: by the clock, beside whatever else runs.
    """

    alone: float
    now: float

    @property
    def share(self) -> float:
        """Part of the cores that the workers got, 0 to 1."""
        return min(1.0, self.now / self.alone)


def measured_rate(workers: int = 1, seconds: float = 1.0, dtype: str = "bfloat16") -> Rate:
    """Measure the CPU, or the GPU where there is one (which is taken to be free).

    Args:
        workers: threads of a CPU that compute side by side.
        seconds: how long; a machine that is very busy takes a little longer.
        dtype: number format of the matrices.
    """
    import torch

    if torch.cuda.is_available():
        done, spent, _ = _products("cuda", seconds, dtype)
        return Rate(done * _PRODUCT / spent, done * _PRODUCT / spent)
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(lambda _: _products("cpu", seconds, dtype), range(workers)))
    now = sum(done / clock for done, clock, _ in found)
    alone = sum(done / min(clock, core) for done, clock, core in found)
    return Rate(alone * _PRODUCT, now * _PRODUCT)


def _products(device: str, seconds: float, dtype: str) -> tuple[int, float, float]:
    """Products computed, and the seconds they took by the clock and of a core."""
    import torch

    matrix = torch.ones(_SIDE, _SIDE, dtype=getattr(torch, dtype), device=device)
    (matrix @ matrix).sum().item()
    done, clock, core = 0, time.perf_counter(), time.thread_time()
    while done < _LEAST or time.perf_counter() - clock < seconds:
        (matrix @ matrix).sum().item()
        done += 1
    return done, time.perf_counter() - clock, max(time.thread_time() - core, 1e-9)
