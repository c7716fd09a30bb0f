"""`written.py` is importable as `written` from every decoding test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
