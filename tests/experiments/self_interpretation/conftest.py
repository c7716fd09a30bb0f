"""`grid_world` and `written` are importable from every test here."""

import sys
from pathlib import Path

for folder in (Path(__file__).parents[2] / "decoding", Path(__file__).parent):
    sys.path.insert(0, str(folder))
