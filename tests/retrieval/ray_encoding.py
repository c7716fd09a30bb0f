"""Builds of an index on a local Ray cluster: `ray_encoding.py FOLDER ENCODER`. Not a test."""

import sys
from functools import partial
from pathlib import Path

from ray.cluster_utils import Cluster

import retrieval.build
from retrieval import Passage, UserError, index_passages
from retrieval.encoders import TransformerEncoder
from selfrag.cluster import Actors, RayEncoder, connect

retrieval.build.BLOCK_ROWS = 8
PASSAGES = [Passage(f"p{n}", "abc de f " * (n % 17 + 1)) for n in range(101)]


class Broken(TransformerEncoder):
    """Cannot encode the last block."""

    def encode(self, texts, batch_size=64):
        if len(texts) == len(PASSAGES) % 8:
            raise UserError("the worker is broken")
        return super().encode(texts, batch_size)


def build(out, encoder, opening, workers):
    index_passages(PASSAGES, out, encoder=RayEncoder(encoder, opening, Actors(workers)), progress=False)


def main():
    folder, source = Path(sys.argv[1]), sys.argv[2]
    local = TransformerEncoder(source)
    index_passages(PASSAGES, folder / "local", encoder=local)
    whole = (folder / "local" / "vectors.npy").read_bytes()
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 10**8, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=2, object_store_memory=10**8)
    try:
        with connect(cluster.address):
            for workers in (1, 4):
                build(folder / f"{workers}", local, partial(TransformerEncoder, source), workers)
                assert (folder / f"{workers}" / "vectors.npy").read_bytes() == whole
            try:
                build(folder / "broken", local, partial(Broken, source), 2)
            except UserError as error:
                print(f"stopped: {error}")  # noqa: T201
            assert not (folder / "broken").exists()
            index_passages(PASSAGES, folder / "broken", encoder=(counting := Counting(local)), progress=False)
            assert (folder / "broken" / "vectors.npy").read_bytes() == whole
            print(f"resumed: {counting.texts} texts")  # noqa: T201
    finally:
        cluster.shutdown()


class Counting:
    """The local encoder, and how many texts it got."""

    def __init__(self, encoder):
        self.card, self._encoder, self.texts = encoder.card, encoder, 0

    def encode(self, texts, batch_size=64):
        self.texts += len(texts)
        return self._encoder.encode(texts, batch_size)


if __name__ == "__main__":
    main()
