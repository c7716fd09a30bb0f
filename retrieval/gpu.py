"""Candidates of a search by vectors from a GPU, where faiss was built for one (`faiss-gpu`, in the extra `gpu`).

A GPU is used without being asked for. It gives candidates only: their scores are computed from the stored vectors, as
on a CPU. Whatever a GPU cannot do, or has no memory for, is left to the CPU.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfrag.common.untrusted import cut

LOG = logging.getLogger("retrieval")
_MOST = 2048  # results of a query, and lists of an index, on a GPU of faiss
_SPARE = 1.2  # times as many rows are fetched as are needed, so that enough of them are allowed


def gpu_resources() -> Any:
    """Return faiss's handle of the first GPU, or None where faiss has no GPU."""
    import faiss

    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() == 0:
        return None
    return faiss.StandardGpuResources()


def flat_on_gpu(
    resources: Any, dim: int, halves: bool, blocks: Iterable[NDArray[np.float32]]
) -> Any:
    """Return an exact index on the GPU with the vectors of blocks [n, dim]; with `halves` it holds float16."""
    import faiss

    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = halves
    index = faiss.GpuIndexFlatIP(resources, dim, config)
    for block in blocks:
        index.add(np.ascontiguousarray(block))
    return index


def lists_on_gpu(resources: Any, index: Any, nprobe: int) -> Any:
    """Return a copy of an index with inverted lists on the GPU, of which a search visits `nprobe`.

    Raises:
        RuntimeError: faiss has no such kind of index for GPUs, such as RaBitQ.
    """
    import faiss

    copied = faiss.index_cpu_to_gpu(resources, 0, index)
    faiss.GpuParameterSpace().set_index_parameter(copied, "nprobe", min(nprobe, _MOST))
    return copied


class GpuCandidates:
    """The best rows of queries by an index on a GPU, which is filled at the first search.

    Args:
        fill: called with the resources of the GPU; gives the index.
    """

    def __init__(self, fill: Callable[[Any], Any]) -> None:
        self._fill = fill
        self._index: Any = None
        self._usable = True
        self._lock = Lock()  # faiss searches on a GPU from one thread at a time

    def best_rows(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None
    ) -> Any:
        """Return unordered rows [m, at least k], -1 for none; or None where the CPU is to search.

        `allowed` is bool [n], the rows that may be found; None for all.
        """
        if not self._usable:
            return None
        count = k
        if allowed is not None:
            count = math.ceil(
                _SPARE * k * len(allowed) / max(1, int(np.count_nonzero(allowed)))
            )
        if count > _MOST:
            return None
        rows = self._search(queries, count)
        if rows is None or allowed is None:
            return rows
        rows[(rows >= 0) & ~allowed[rows]] = -1
        enough = (np.count_nonzero(rows >= 0, axis=1) >= k).all()
        return rows if enough else None

    def _search(self, queries: NDArray[np.float32], count: int) -> Any:
        with self._lock:
            if not self._usable:  # another thread has found that out meanwhile
                return None
            try:
                if self._index is None:
                    resources = gpu_resources()
                    if resources is None:
                        self._usable = False
                        return None
                    self._index = self._fill(resources)
                return self._index.search(queries, count)[1]
            except RuntimeError as error:  # not enough memory, or no such kind of index
                reason = cut(" ".join(str(error).split()), 200)
                LOG.warning("the CPU searches: the GPU cannot (%s)", reason)
                self._index, self._usable = None, False
                return None
