"""Fixtures and helpers of other rooms, for tests of what extensions add to them."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOMS = (
    "retrieval",
    "decoding",
    "serving",
    "engines",
    "evaluation",
    "render",
    "critic/augment",
    "intrinsics",
)
sys.path[:0] = [str(Path(__file__).parent), *(str(TESTS / room) for room in ROOMS)]

from served import serve  # noqa: E402
from small_index import animals, encoder, index, make_encoder, tiny_bert  # noqa: E402

__all__ = ["animals", "encoder", "index", "make_encoder", "serve", "tiny_bert"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two finished runs over two files; the first keeps traces, the second fails on an item."""
    import reported

    return reported.make(tmp_path_factory.mktemp("reported"))
