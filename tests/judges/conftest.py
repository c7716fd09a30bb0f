"""The helpers of other tests are importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
for folder in ("engines", "decoding", "intrinsics", "evaluation", "critic/student"):
    sys.path.insert(0, str(HERE / folder))
