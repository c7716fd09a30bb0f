"""The hand-written trees of the decoding tests are importable as `written` from every test here."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "decoding"):
    sys.path.insert(0, str(folder))
