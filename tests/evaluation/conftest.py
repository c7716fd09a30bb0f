"""The hand-written trees of the decoding tests are importable as `written` from every test here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "decoding"))
