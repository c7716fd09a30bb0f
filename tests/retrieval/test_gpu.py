"""Search of vectors on a GPU, with the CPU as reference: on a real one where there is any, and on a stand-in."""

import faiss
import numpy as np
import pytest

from retrieval import gpu
from retrieval.compressed import CompressedIndex, build_compressed
from retrieval.vectors import FlatIndex

ROWS, DIM = 24_000, 16
RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.standard_normal((ROWS, DIM), dtype=np.float32)
QUERIES = RANDOM.standard_normal((9, DIM), dtype=np.float32)


class StandIn:
    """An index of faiss on the CPU in the place of one on a GPU. Counts its searches."""

    def __init__(self, index):
        self.index, self.searches = index, 0

    def add(self, vectors):
        self.index.add(vectors)

    def search(self, queries, k):
        assert k <= 2048
        self.searches += 1
        return self.index.search(queries, k)


@pytest.fixture
def made(monkeypatch):
    """Stand-ins that were made, for flat indexes and those with lists."""
    indexes = []

    def flat(_resources, dim, _halves, blocks):
        indexes.append(StandIn(faiss.IndexFlatIP(dim)))
        for block in blocks:
            indexes[-1].add(block)
        return indexes[-1]

    def lists(_resources, index, nprobe):
        if not isinstance(faiss.downcast_index(index), faiss.IndexIVFFlat):
            raise RuntimeError("no such kind for GPUs")
        copied = faiss.clone_index(index)
        copied.nprobe = nprobe
        indexes.append(StandIn(copied))
        return indexes[-1]

    monkeypatch.setattr(gpu, "gpu_resources", object)
    monkeypatch.setattr("retrieval.gpu.flat_on_gpu", flat)
    monkeypatch.setattr("retrieval.compressed.lists_on_gpu", lists)
    return indexes


def check_against_the_cpu(made):
    reference = FlatIndex(VECTORS, "numpy")
    for share in (None, 0.9, 0.2, 0.0005):
        rare = np.random.default_rng(1).random(ROWS)
        allowed = None if share is None else rare < share
        searched = FlatIndex(VECTORS)
        for _ in range(2):
            hits = searched.search(QUERIES, 10, allowed)
            exact = reference.search(QUERIES, 10, allowed)
            np.testing.assert_array_equal(hits.rows, exact.rows)
            np.testing.assert_array_equal(hits.scores, exact.scores)


def test_flat_search_on_a_stand_in_equals_the_cpu(made):
    check_against_the_cpu(made)
    # one for each index; a rare row is looked for on the CPU
    assert [index.searches for index in made] == [2, 2, 2]


@pytest.mark.parametrize("factory", ["IVF32,Flat", "IVF32,RaBitQfs", "RaBitQfs"])
def test_lists_are_searched_on_the_gpu_and_other_kinds_exactly(made, tmp_path, factory):
    flat = FlatIndex(VECTORS, "numpy")
    card = build_compressed(flat, factory, tmp_path / "dense.faiss", progress=False)
    assert not made  # the recall is measured on the CPU
    index = CompressedIndex.open(tmp_path / "dense.faiss", FlatIndex(VECTORS), card)
    reference = CompressedIndex(
        index._index, flat, card.nprobe, card.candidates, uses_gpu=False
    )
    hits, exact = index.search(QUERIES, 10), flat.search(QUERIES, 10)
    if factory == "IVF32,Flat":
        np.testing.assert_array_equal(hits.rows, reference.search(QUERIES, 10).rows)
    else:
        np.testing.assert_array_equal(hits.rows, exact.rows)
    assert [index.searches for index in made] == [1]


def test_what_a_gpu_has_no_memory_for_is_searched_on_the_cpu(monkeypatch, made, caplog):
    def refuse(*_):
        made.append("tried")
        raise RuntimeError(
            "Error in void* StandardGpuResourcesImpl::allocMemory: out of memory"
        )

    monkeypatch.setattr("retrieval.gpu.flat_on_gpu", refuse)
    check_against_the_cpu(made)
    assert made == ["tried"] * 3  # once for each index
    said = "the CPU searches: the GPU cannot (Error in void* "
    assert [record.message[: len(said)] for record in caplog.records] == [said] * 3
    small = FlatIndex(VECTORS[:100])
    assert small.search(QUERIES, 5).rows.shape == (9, 5)
    assert len(made) == 3  # few rows are not worth a GPU


def test_a_real_gpu_equals_the_cpu(tmp_path):
    if gpu.gpu_resources() is None:
        pytest.skip(
            "faiss has no GPU here: it is faiss-cpu, or there is no CUDA device"
        )
    check_against_the_cpu([])
    halves = FlatIndex(VECTORS.astype(np.float16))
    exact = FlatIndex(VECTORS.astype(np.float16), "numpy").search(QUERIES, 10)
    np.testing.assert_array_equal(halves.search(QUERIES, 10).rows, exact.rows)
    card = build_compressed(
        halves, "IVF32,Flat", tmp_path / "dense.faiss", progress=False
    )
    index = CompressedIndex.open(tmp_path / "dense.faiss", halves, card)
    pairs = zip(exact.rows, index.search(QUERIES, 10).rows, strict=True)
    same = np.mean([np.isin(*rows).mean() for rows in pairs])
    assert same >= card.recall_low - 0.05
