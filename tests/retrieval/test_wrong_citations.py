"""Faults that must not come back: wrong citations of approximate indexes, unbounded work, and work done twice."""

import numpy as np
import pytest

import retrieval.build
from retrieval import Corpus, DenseRetriever, Passage, UserError, build_index, index_passages, open_index
from retrieval.encoders import load_encoder
from retrieval.readers import Place, Row
from retrieval.vectors import Hits


class Approximate:
    """An index that finds only some rows, and says -1 for the others."""

    def __init__(self, rows, size, dim=32):
        self.rows, self.size, self.dim, self.asked = rows, size, dim, []

    def __len__(self):
        return self.size

    def all_finite(self):
        return True

    def search(self, queries, k, allowed=None):
        self.asked.append(k)
        found = np.full((len(queries), k), -1, np.int64)
        found[:, : len(self.rows)] = self.rows[:k]
        return Hits(np.linspace(1, 0, k, dtype=np.float32)[None].repeat(len(queries), 0), found)


def test_minus_one_of_an_approximate_index_cites_no_passage(tmp_path, animals, encoder):
    index = Approximate([3, 0], size=5)
    retriever = DenseRetriever(Corpus.build(animals, tmp_path / "c"), index, encoder)
    assert [p.id for p in retriever(["honey"], 4)[0]] == ["bee", "cat"]
    assert len(index.asked) == 1  # it has no more: asking again finds nothing


def test_the_search_for_other_texts_is_bounded(tmp_path, encoder):
    corpus = Corpus.build((Passage(f"copy{n}", "the same text") for n in range(5000)), tmp_path / "c")
    index = Approximate(list(range(5000)), size=5000)
    assert [p.id for p in DenseRetriever(corpus, index, encoder)(["text"], 2)[0]] == ["copy0"]
    assert max(index.asked) == 256 * (2 + 8)
    assert len(index.asked) <= 6


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.readers._SETTLED", 0.0)
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"id": "{n}", "text": "passage {n}"}}\n' for n in range(40)))
    return file


def test_files_that_did_not_change_are_not_read_again(tmp_path, table, encoder, make_encoder, monkeypatch):
    build_index([table], tmp_path / "index", encoder=encoder)
    with monkeypatch.context() as patch:
        patch.setattr("retrieval.readers.read_lines", lambda path: pytest.fail("read again"))
        again = make_encoder()
        assert len(build_index([table], tmp_path / "index", encoder=again).corpus) == 40
        assert again.texts == []
    table.write_text('{"id": "new", "text": "another"}\n')
    assert len(build_index([table], tmp_path / "index", encoder=encoder).corpus) == 1


def test_an_interrupted_build_does_not_read_again(tmp_path, table, make_encoder, monkeypatch):
    monkeypatch.setattr(retrieval.build, "BLOCK_ROWS", 10)
    with pytest.raises(KeyboardInterrupt):
        build_index([table], tmp_path / "index", encoder=make_encoder(fail_after=2))
    monkeypatch.setattr("retrieval.readers.read_lines", lambda path: pytest.fail("read again"))
    again = make_encoder()
    assert len(build_index([table], tmp_path / "index", encoder=again).corpus) == 40
    assert len(again.texts) == 20


def test_ids_that_share_a_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("retrieval.corpus.hash", lambda identifier: 7, raising=False)
    rows = [Row(Passage(str(n), "text"), Place("a.jsonl", n + 1)) for n in range(5)]
    assert len(Corpus.build(rows, tmp_path / "c")) == 5
    with pytest.raises(UserError, match=r"a\.jsonl:3: id '2' is already used at a\.jsonl:3"):
        Corpus.build([*rows, rows[2]], tmp_path / "c")


def test_another_precision_gives_near_vectors_and_opens_the_same_index(tmp_path, tiny_bert, animals):
    exact, fast = load_encoder(tiny_bert), load_encoder(tiny_bert, precision="bfloat16", device="auto")
    assert (exact.card.precision, fast.card.precision) == ("float32", "bfloat16")
    assert exact.card.identity() == fast.card.identity()
    texts = [passage.text for passage in animals]
    first, second = exact.encode(texts), fast.encode(texts)
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    assert cosine.min() > 0.99
    built = index_passages(animals, tmp_path / "index", encoder=fast)
    assert [p.id for p in open_index(tmp_path / "index")(["honey"], 5)[0]] == [p.id for p in built(["honey"], 5)[0]]
