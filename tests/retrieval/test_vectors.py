"""Exact and approximate search of vectors: equal to faiss to the bit; recall, filters, storage, changes of kind."""

import os
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from retrieval import Passage, index_passages, open_index
from retrieval.build import compact_index, remove_passages
from retrieval.compressed import CompressedIndex, build_compressed
from retrieval.encoders import EncoderCard
from retrieval.index import load_manifest
from retrieval.vector_writing import EncodingJournal, GrowingMatrix, as_stored
from retrieval.vectors import FlatIndex, SegmentedIndex, as_float32, factory_of

pytest.importorskip("faiss")


def random(rows, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


@settings(max_examples=30)
@given(*(st.integers(1, most) for most in (400, 24, 40, 50, 2**16)))
def test_faiss_and_numpy_agree_to_the_bit(rows, dim, queries, k, seed):
    # values on a coarse grid make many exact ties
    vectors = np.round(random(rows, dim, seed) * 4) / 4
    asked = np.round(random(queries, dim, seed + 1) * 4) / 4
    by_faiss, by_numpy = (
        FlatIndex(vectors, backend).search(asked, k) for backend in ("faiss", "numpy")
    )
    assert by_faiss.scores.shape == (queries, min(k, rows))
    np.testing.assert_array_equal(by_faiss.scores, by_numpy.scores)
    # a tie at the last place may be cut anywhere
    clear = by_faiss.scores > by_faiss.scores[:, -1:]
    np.testing.assert_array_equal(by_faiss.rows[clear], by_numpy.rows[clear])


@pytest.mark.parametrize("backend", ["faiss", "numpy"])
@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_the_best_allowed_rows_are_found_in_order_whatever_their_segments(
    backend, storage, share
):
    stored, queries = as_stored(random(20_000, 8), storage), random(7, 8, 1)
    allowed = None if share == 1 else np.random.default_rng(3).random(20_000) < share
    exact = queries.astype(np.float64) @ as_float32(stored).T.astype(np.float64)
    exact = exact if allowed is None else np.where(allowed, exact, -np.inf)
    whole = FlatIndex(stored, backend).search(queries, 10, allowed)
    parts = [FlatIndex(part, backend) for part in np.split(stored, [100, 9000, 9001])]
    best = np.argsort(-exact, axis=1, kind="stable")[:, :10]
    scores = np.take_along_axis(exact, best, 1)
    for hits in (whole, SegmentedIndex(parts, allowed).search(queries, 10)):
        np.testing.assert_array_equal(hits.rows, best)
        np.testing.assert_allclose(hits.scores, scores, rtol=1e-6)


def test_a_matrix_keeps_the_rows_that_its_journal_vouches_for(tmp_path, caplog):
    vectors, file, log = random(10, 3), tmp_path / "v.npy", tmp_path / "journal.jsonl"

    @contextmanager
    def opened(rows=10, identity=1):
        with closing(EncodingJournal(log, {"of": identity})) as journal:
            yield GrowingMatrix(file, rows, 3, journal=journal)

    def done(**settings):
        with opened(**settings) as matrix:
            return matrix.done

    def write_all():
        with opened() as matrix:
            matrix.append(vectors[matrix.done :])

    with opened() as first:
        first.append(vectors[:4])
    with file.open("ab") as torn:  # a block was being written when the process died
        torn.write(b"\xff" * 17)
    assert done() == 4
    write_all()
    np.testing.assert_array_equal(np.load(file), vectors)
    assert done(rows=11) == 0  # of another shape
    assert done() == 0
    head = '{"identity": {"of": 1}}\n'
    for damage in ("no JSON\n", head + '{"rows": 99}\n', head + '{"row": 9}\n'):
        log.write_text(damage)
        assert done() == 0
    write_all()
    os.truncate(file, file.stat().st_size - 1)
    assert done() == 0
    write_all()
    caplog.clear()
    assert done(identity=2) == 0  # of other vectors
    assert "vectors are encoded anew: " in caplog.text


DIM = 32


@pytest.fixture(scope="module")
def vectors():
    """Rows around centres, as the vectors of texts are."""
    centres = random(300, DIM)[np.random.default_rng(0).integers(0, 300, 30_000)]
    rows = centres + 0.5 * random(30_000, DIM, 1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def queries(vectors):
    return vectors[::300] + 0.03 * random(100, DIM, 2)


@pytest.fixture(scope="module", params=["rabitq", "ivf", "IVF64,Flat"])
def built(request, vectors, tmp_path_factory):
    file = tmp_path_factory.mktemp("dense") / "dense.faiss"
    flat = FlatIndex(vectors.astype(np.float16))
    factory = factory_of(request.param, len(vectors), DIM)
    card = build_compressed(flat, factory, file, progress=False)
    return CompressedIndex.open(file, flat, card), card


def recall(results, exact):
    pairs = zip(results.rows, exact.rows, strict=True)
    return np.mean([np.isin(hits, best).mean() for hits, best in pairs])


def test_the_stated_recall_is_reached_on_other_queries(built, vectors, queries):
    index, card = built
    exact = FlatIndex(vectors.astype(np.float16)).search(queries, 10)
    results = index.search(queries, 10)
    assert card.recall_low >= 0.9
    assert recall(results, exact) >= card.recall_low - 0.03
    same = results.rows[:, 0] == exact.rows[:, 0]
    # rescored exactly
    np.testing.assert_array_equal(results.scores[same, 0], exact.scores[same, 0])
    assert (np.diff(results.scores, axis=1) <= 0).all()


@pytest.mark.parametrize("share", [0.5, 0.05, 0.005, 0.0])
def test_a_filter_keeps_its_recall_and_lets_nothing_else_through(
    built, vectors, queries, share
):
    index, _ = built
    allowed = np.random.default_rng(2).random(len(vectors)) < share
    exact = FlatIndex(vectors.astype(np.float16)).search(queries, 10, allowed)
    results = index.search(queries, 10, allowed)
    assert results.rows.shape == exact.rows.shape
    assert allowed[results.rows[results.rows >= 0]].all()
    if share:
        assert recall(results, exact) >= 0.9


class Numbered:
    """The vector of a text is one of a matrix, by the number that the text ends with."""

    card = EncoderCard("numbered", "1", DIM)

    def __init__(self, vectors):
        self.vectors, self.calls = vectors, 0

    def encode(self, texts):
        self.calls += 1
        return self.vectors[[int(text.split()[-1]) for text in texts]]


PASSAGES = [Passage(str(n), f"text {n}") for n in range(3000)]


def test_a_change_of_kind_encodes_nothing(tmp_path, vectors):
    encoder, index = Numbered(vectors), tmp_path / "index"

    def ids(k):
        hits = open_index(index, encoder)(["text 7"], k)[0]
        return [hit.id for hit in hits]

    index_passages(PASSAGES, index, encoder=encoder)
    for kind in ("rabitq", "flat", "ivf"):
        encoder.calls = 0
        if kind == "rabitq":
            index_passages(PASSAGES, index, encoder=encoder, kind=kind)
        else:
            compact_index(index, kind=kind)
        assert encoder.calls == 0
        manifest = load_manifest(index)
        assert manifest.kind == kind
        assert (manifest.dense is None) == (kind == "flat")
        assert len(list(index.glob("parts/*dense*"))) == (kind != "flat")
        assert ids(1) == ["7"]
    index_passages(PASSAGES, index, encoder=encoder)  # says nothing of a kind: it stays
    assert load_manifest(index).kind == "ivf"
    remove_passages(index, ["7"])
    assert "7" not in ids(50)
    compact_index(index)
    assert load_manifest(index).dense.factory.startswith("RR32,IVF")
    assert "7" not in ids(50)


def test_int8_is_a_quarter_of_the_disk_and_finds_the_same(tmp_path, vectors):
    encoder, index = Numbered(vectors), tmp_path / "index"
    index_passages(PASSAGES, index, encoder=encoder, kind="ivf", storage="float32")

    def search():
        hits = open_index(index, encoder, mode="dense")(["text 7"], 5)[0]
        return [hit.id for hit in hits], [hit.score for hit in hits]

    ids, scores = search()
    encoder.calls = 0
    # the second changes nothing, the last writes the int8 vectors again
    for removed in ([], [], ["9"]):
        if removed:
            remove_passages(index, removed)
        compact_index(index, storage="int8")
        assert search() == (ids, pytest.approx(scores, abs=0.005))
        rows = np.load(index / "vectors.npy")
        assert rows.itemsize == DIM + 4
        first = vectors[:7]
        assert np.abs(as_float32(rows[:7]) - first).max() <= np.abs(first).max() / 253
    assert encoder.calls == 3  # for the searches
    assert len(rows) == 2999


@pytest.mark.parametrize("kind", ["hnsw", "", "IVF99999999,Flat", "PQ7"])
def test_a_kind_that_cannot_be_is_one_line(tmp_path, vectors, kind):
    with refused("kind="):
        index_passages(
            PASSAGES[:100], tmp_path / "i", encoder=Numbered(vectors), kind=kind
        )


def test_auto_goes_by_size():
    assert factory_of("auto", 50_000, 8) == ""
    assert factory_of("auto", 50_001, 8) == "RaBitQfs"
    assert factory_of("auto", 500_001, 8) == "RR8,IVF1024,RaBitQfs"
