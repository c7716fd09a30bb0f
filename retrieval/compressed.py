"""Approximate search: faiss's codes find candidates, the memory-mapped vectors give their exact scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.gpu import GpuCandidates, lists_on_gpu
from retrieval.vectors import (
    LEAST_GPU_ROWS,
    DenseCard,
    FlatIndex,
    Mask,
    Matrix,
    RowNumbers,
    VectorHits,
    faiss_threads,
)
from selfrag.common.errors import UserError, count_of, require
from selfrag.common.progress import Progress

# of float32 vectors that centroids are trained on, and always so many for each list:
_TRAINING_BYTES = 1 << 25
_PER_LIST = 10
_BLOCK = 16_384  # vectors that are added at once
_QUERIES = 256
_K = 10
# vectors to ask, neighbours of each, and the recall they must surely reach
_TARGET = 0.97
_CANDIDATES = (100, 200, 400, 800)
_EXACT_ROWS = 20_000  # so few allowed rows are compared one by one


def build_compressed(
    vectors: FlatIndex, factory: str, file: Path, *, progress: bool | None = None
) -> DenseCard:
    """Train an index on a sample of the vectors, add all of them, choose its settings and write it to `file`."""
    # a flat index has no files of faiss
    from retrieval.faiss_files import (
        empty_index,
        reason,
    )

    faiss = require("faiss", extra="cpu")
    random = np.random.default_rng(0)
    index = empty_index(factory, vectors.dim, len(vectors))
    try:
        lists = _lists(index)
        sample = _TRAINING_BYTES // (4 * vectors.dim)
        if lists is not None:
            sample = max(sample, _PER_LIST * lists.nlist)
            lists.cp.min_points_per_centroid = 1  # it only warns
        sample = min(len(vectors), sample)
        index.train(
            vectors.rows(np.sort(random.choice(len(vectors), sample, replace=False)))
        )
        with Progress("indexing", "vector", len(vectors), show=progress) as bar:
            for start in range(0, len(vectors), _BLOCK):
                index.add(vectors.block(start, start + _BLOCK))
                bar.advance(min(_BLOCK, len(vectors) - start))
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"kind={factory!r:.80}: faiss cannot build it of {count_of(len(vectors), 'vectors')} of"
            f" {vectors.dim}: {reason(error)}"
        ) from error
    card = _calibrated(index, vectors, factory, random)
    faiss.write_index(index, str(file))
    return card


def _unsearchable(why: str) -> UserError:
    return UserError(
        f"the approximate index is damaged, or of a kind that cannot be searched here ({why}); build the index again, "
        "such as with kind rabitq"
    )


def _lists(index: Any) -> Any:
    """Return the inverted lists of an index, or None."""
    import faiss

    try:
        return faiss.extract_index_ivf(index)
    except RuntimeError:  # an index without lists
        return None


def _settings(index: Any) -> Iterator[tuple[int, int]]:
    """Yield numbers of candidates and of lists to try, cheap ones first."""
    lists = _lists(index)
    most = 0 if lists is None else max(1, lists.nlist // 4)
    probes = [*(1 << power for power in range(3, 20) if 1 << power < most), most]
    for candidates in _CANDIDATES:
        for nprobe in probes:
            yield candidates, nprobe


def _calibrated(
    index: Any, vectors: FlatIndex, factory: str, random: np.random.Generator
) -> DenseCard:
    """Return the cheapest settings whose recall surely reaches the target, else the best ones."""
    queries = _queries(vectors, random)
    truth = vectors.search(queries, _K).rows.tolist()
    best: DenseCard | None = None
    for candidates, nprobe in _settings(index):
        rows = (
            CompressedIndex(index, vectors, nprobe, candidates, uses_gpu=False)
            .search(queries, _K)
            .rows.tolist()
        )
        shares = np.array(
            [
                len({*near} & {*exact}) / len(exact)
                for near, exact in zip(rows, truth, strict=True)
            ]
        )
        mean, error = float(shares.mean()), float(shares.std() / math.sqrt(len(shares)))
        low = round(max(0.0, mean - 1.96 * error), 4)
        if best is None or low > best.recall_low + 0.001:
            best = DenseCard(
                factory, nprobe, candidates, round(mean, 4), low, len(queries)
            )
        if low >= _TARGET:
            break
    assert best is not None  # noqa: S101 - there is always a setting to try
    return best


def _queries(vectors: FlatIndex, random: np.random.Generator) -> Matrix:
    """Return vectors as far from the passages as questions are.

    A passage itself is too easy a query. Each one is moved by 1.5 times its length, in the direction from one other
    passage to another. With MiniLM its nearest passage then has the cosine 0.60, that of a question 0.66.
    """
    count = min(_QUERIES, len(vectors))
    start, first, second = (
        vectors.rows(np.sort(random.choice(len(vectors), count, replace=False)))
        for _ in range(3)
    )
    away = random.permutation(first) - random.permutation(second)
    far, near = (np.linalg.norm(part, axis=1, keepdims=True) for part in (start, away))
    moved: Matrix = start + 1.5 * far * away / np.maximum(near, 1e-9)
    return moved.astype(np.float32)


class CompressedIndex:
    """Approximate search with exact scores: `candidates` rows are scored exactly for up to 10 results.

    On a GPU an index with lists is searched as it is, if faiss can; any other kind is searched exactly there.
    """

    def __init__(
        self,
        index: Any,
        vectors: FlatIndex,
        nprobe: int,
        candidates: int,
        *,
        uses_gpu: bool = True,
    ) -> None:
        self._index = index
        self._vectors = vectors
        self._nprobe = nprobe
        self._candidates = candidates
        self._nlist = _lists(index).nlist if nprobe else 0
        self._uses_gpu = uses_gpu
        self._gpu: GpuCandidates | None = None
        if nprobe and len(vectors) >= LEAST_GPU_ROWS:
            self._gpu = GpuCandidates(
                lambda resources: lists_on_gpu(resources, index, nprobe)
            )

    @classmethod
    def open(cls, file: Path, vectors: FlatIndex, card: DenseCard) -> CompressedIndex:
        """Read an index that `build_compressed` wrote; a damaged file, or one of other vectors, is refused."""
        from retrieval.faiss_files import read_faiss

        index = read_faiss(file, card.factory, vectors.dim, len(vectors))
        if (card.nprobe > 0) != (_lists(index) is not None):
            raise UserError(
                f"{file} is not the index of these vectors; build the index again"
            )
        return cls(index, vectors, card.nprobe, card.candidates)

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._vectors.dim

    def search(
        self, queries: Matrix, k: int, allowed: Mask | None = None
    ) -> VectorHits:
        """Return the best rows for each of the queries [m, d], -1 for none; see `VectorIndex.search`."""
        count = len(self) if allowed is None else int(np.count_nonzero(allowed))
        k = min(k, count)
        needed = min(max(self._candidates, 4 * k), count)
        if needed == count or (allowed is not None and count <= _EXACT_ROWS):
            return self._vectors.search(queries, k, allowed)
        queries = np.ascontiguousarray(queries, np.float32)
        rows: RowNumbers | None = None
        if self._uses_gpu:
            if self._gpu is not None:
                rows = self._gpu.best_rows(queries, needed, allowed)
            if rows is None:
                rows = self._vectors.gpu_candidates(queries, k, allowed)
        try:
            if rows is None:
                with faiss_threads(len(queries)):
                    rows = self._candidate_rows(
                        queries, needed, allowed, count / len(self)
                    )
        except (RuntimeError, MemoryError, IndexError) as error:
            from retrieval.faiss_files import reason

            raise _unsearchable(reason(error)) from error
        if rows.min() < -1 or rows.max() >= len(self):
            raise _unsearchable("it names rows that no passage has")
        return self._vectors.rescored(queries, np.sort(rows, axis=1), k)

    def _candidate_rows(
        self, queries: Matrix, needed: int, allowed: Mask | None, share: float
    ) -> RowNumbers:
        """Return candidates, int64 [m, at least `needed`]."""
        faiss: Any = require("faiss", extra="cpu")

        if self._nprobe:
            # allowed neighbours lie further away: the rarer they are, the more lists hold them
            settings: dict[str, Any] = {
                "nprobe": min(self._nlist, math.ceil(self._nprobe / share))
            }
            if allowed is not None:
                # lives until the search has ended
                bits = np.packbits(allowed, bitorder="little")
                settings["sel"] = faiss.IDSelectorBitmap(bits)
            inner = faiss.SearchParametersIVF(**settings)
            pre = isinstance(faiss.downcast_index(self._index), faiss.IndexPreTransform)
            params = (
                faiss.SearchParametersPreTransform(index_params=inner) if pre else inner
            )
            rows: RowNumbers = self._index.search(queries, needed, params=params)[1]
            return rows
        rows = self._index.search(
            queries, min(len(self), math.ceil(1.2 * needed / share))
        )[1]
        if allowed is not None:
            rows[(rows >= 0) & ~allowed[rows]] = -1
        return rows
