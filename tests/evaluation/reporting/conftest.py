"""Makes the modules beside the tests, the parser of pages and the browser importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "pages"))

import reported


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two finished runs over two files; the first keeps traces, the second fails on an item."""
    return reported.make(tmp_path_factory.mktemp("reported"))
