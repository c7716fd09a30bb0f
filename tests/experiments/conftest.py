"""The hand-written trees of the decoding tests and the judges of evaluation's are importable from every test here."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in (Path(__file__).parent, TESTS / "decoding", TESTS / "evaluation" / "metrics"):
    sys.path.insert(0, str(folder))
