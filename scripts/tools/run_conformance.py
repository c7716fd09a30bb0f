"""Run recorded cases of the public intrinsics libraries through our codecs; see `tests/extensions/granite/conformance`.

python scripts/tools/run_conformance.py DIR [--only D3] [--json FILE]
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "extensions" / "granite"))


def main() -> None:
    """Run the cases, and end with the exit code."""
    runpy.run_module("conformance.__main__")["main"]()


if __name__ == "__main__":
    main()
