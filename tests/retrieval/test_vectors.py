import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.vectors import FlatIndex, GrowingMatrix, SegmentedIndex, as_float32, as_stored

pytest.importorskip("faiss")


def random(rows, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(1, 24), st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**16))
def test_faiss_and_numpy_agree_to_the_bit(rows, dim, queries, k, seed):
    # values on a coarse grid make many exact ties
    vectors = np.round(random(rows, dim, seed) * 4) / 4
    asked = np.round(random(queries, dim, seed + 1) * 4) / 4
    by_faiss, by_numpy = (FlatIndex(vectors, backend).search(asked, k) for backend in ("faiss", "numpy"))
    assert by_faiss.scores.shape == (queries, min(k, rows))
    np.testing.assert_array_equal(by_faiss.scores, by_numpy.scores)
    clear = by_faiss.scores > by_faiss.scores[:, -1:]  # a tie at the last place may be cut anywhere
    np.testing.assert_array_equal(by_faiss.rows[clear], by_numpy.rows[clear])


@pytest.mark.parametrize("backend", ["faiss", "numpy"])
@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_the_best_allowed_rows_are_found_in_order_whatever_their_segments(backend, storage, share):
    stored, queries = as_stored(random(20_000, 8), storage), random(7, 8, 1)
    allowed = None if share == 1 else np.random.default_rng(3).random(20_000) < share
    exact = queries.astype(np.float64) @ as_float32(stored).T.astype(np.float64)
    exact = exact if allowed is None else np.where(allowed, exact, -np.inf)
    whole = FlatIndex(stored, backend).search(queries, 10, allowed)
    parts = [FlatIndex(part, backend) for part in np.split(stored, [100, 9000, 9001])]
    for hits in (whole, SegmentedIndex(parts, allowed).search(queries, 10)):
        np.testing.assert_array_equal(hits.rows, np.argsort(-exact, axis=1, kind="stable")[:, :10])
        np.testing.assert_allclose(hits.scores, np.sort(exact, axis=1)[:, ::-1][:, :10], rtol=1e-6)


def test_a_matrix_keeps_the_rows_that_its_journal_vouches_for(tmp_path):
    vectors, place = random(10, 3), (tmp_path / "v.npy", tmp_path / "journal.json")
    GrowingMatrix(*place, 10, 3).append(vectors[:4])
    with place[0].open("ab") as torn:  # a block that was being written when the process died
        torn.write(b"\xff" * 17)
    second = GrowingMatrix(*place, 10, 3)
    assert second.done == 4
    second.append(vectors[4:])
    np.testing.assert_array_equal(np.load(place[0]), vectors)
    assert GrowingMatrix(*place, 11, 3).done == 0  # of another shape
    place[1].write_text('{"rows": 99}')
    assert GrowingMatrix(*place, 10, 3).done == 0
