"""An index that Ray actors encode has the bytes of a local one, and a build that stopped goes on."""

import pickle
import sys

import pytest

import retrieval.build
from retrieval import UserError, index_passages
from selfrag import cluster
from selfrag.cluster import Actors, RayEncoder
from selfrag.errors import MissingExtraError


@pytest.fixture
def _actors_here(monkeypatch):
    """What Ray does: actors take turns, all crosses as bytes, rows come back in any order, an error at the end."""

    def on_actors(rows, worker, arguments, actors):
        workers = [worker(*arguments) for _ in range(actors.workers)]
        done = [workers[n % len(workers)](pickle.loads(pickle.dumps(row))) for n, row in enumerate(rows)]
        yield from reversed(done)
        if error := next((row["error"] for row in done if row["error"]), ""):
            raise UserError(error)

    monkeypatch.setattr(cluster, "on_actors", on_actors)
    monkeypatch.setattr(cluster, "require_ray", lambda: None)
    monkeypatch.setattr(retrieval.build, "BLOCK_ROWS", 2)


@pytest.mark.usefixtures("_actors_here")
def test_actors_give_the_bytes_of_a_local_build(tmp_path, animals, make_encoder):
    index_passages(animals, tmp_path / "local", encoder=make_encoder())
    index_passages(animals, tmp_path / "ray", encoder=RayEncoder(make_encoder(), make_encoder, Actors(4)))
    assert (tmp_path / "ray/vectors.npy").read_bytes() == (tmp_path / "local/vectors.npy").read_bytes()


@pytest.mark.usefixtures("_actors_here")
def test_a_worker_with_another_encoder_is_refused(tmp_path, animals, make_encoder):
    other = RayEncoder(make_encoder(), lambda: make_encoder(fingerprint="words-2"), Actors(2))
    with pytest.raises(UserError, match="a worker has another encoder than 'words'"):
        index_passages(animals, tmp_path / "index", encoder=other)


def test_without_ray_the_extra_is_named(monkeypatch, make_encoder):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed; run: .*ray"):
        RayEncoder(make_encoder(), make_encoder, Actors(1))
