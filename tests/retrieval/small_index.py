"""Small real parts for tests of retrieval: a bag-of-words encoder, an index, and a tiny BERT built on the spot."""

import hashlib
import threading

import numpy as np
import pytest
import tiny

from retrieval import Passage
from retrieval.encoders import EncoderCard


class WordEncoder:
    """Texts that share words have similar vectors. Counts what it was asked, and can be interrupted."""

    def __init__(self, dim=32, fingerprint="words-1", fail_after=None):
        self.card = EncoderCard(name="words", fingerprint=fingerprint, dim=dim)
        self.texts, self.calls, self._fail_after = [], 0, fail_after
        self._lock = threading.Lock()

    def encode(self, texts):
        with self._lock:
            self.calls += 1
            if self._fail_after is not None and self.calls > self._fail_after:
                raise KeyboardInterrupt
            self.texts.extend(texts)
        vectors = np.zeros((len(texts), self.card.dim), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                seed = int.from_bytes(
                    hashlib.blake2b(word.encode(), digest_size=4).digest(), "little"
                )
                vectors[row] += np.random.default_rng(seed).standard_normal(
                    self.card.dim, dtype=np.float32
                )
        return vectors / np.maximum(
            np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6
        )


@pytest.fixture
def encoder():
    return WordEncoder()


@pytest.fixture(scope="session")
def make_encoder():
    return WordEncoder


ANIMALS = [
    Passage("cat", "The cat sleeps on the warm mat all day.", "Cat"),
    Passage("dog", "A dog barks at the mail carrier.", "Dog"),
    Passage("owl", "Owls hunt mice in the dark forest.", "Owl"),
    Passage("bee", "Bees make honey from the nectar of flowers.", "Bee"),
    Passage("ant", "Ants carry leaves to their nest.", ""),
]


@pytest.fixture
def animals():
    return list(ANIMALS)


@pytest.fixture
def index(tmp_path, animals, encoder):
    """An index of the animals; what its encoder was asked is forgotten."""
    from retrieval import index_passages

    index_passages(animals, tmp_path / "index", encoder=encoder)
    encoder.texts.clear()
    return tmp_path / "index"


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """Directory of a BERT with random weights and a WordPiece vocabulary of letters, without a pooler."""
    return tiny.save_bert(tmp_path_factory.mktemp("tiny-bert"))
