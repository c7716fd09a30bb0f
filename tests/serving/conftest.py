"""`served`, and `written` and `random_model` of the decoder's tests, are importable from every test here."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "decoding")]

from served import open_server as open_server  # noqa: E402
from served import serve as serve  # noqa: E402
