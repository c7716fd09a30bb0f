"""The fixtures of `small_index`; scripted models and servers of other rooms are importable."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / room) for room in ("retrieval", "decoding", "serving")]

from small_index import animals, encoder, index, make_encoder, tiny_bert  # noqa: E402

__all__ = ["animals", "encoder", "index", "make_encoder", "tiny_bert"]
