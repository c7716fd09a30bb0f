"""The fixtures of `small_index`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from small_index import animals, encoder, index, make_encoder, tiny_bert

__all__ = ["animals", "encoder", "index", "make_encoder", "tiny_bert"]
