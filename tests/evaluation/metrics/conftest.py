"""Makes the tiny judges, the scripted executors of the intrinsics and the scripted run importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
for folder in (
    HERE,
    HERE.parent,
    TESTS / "decoding",
    TESTS / "intrinsics",
    TESTS / "intrinsics" / "execution",
    TESTS / "critic" / "augment",
):
    sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def tiny_true(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random T5."""
    import tiny_judges

    return tiny_judges.save_t5(tmp_path_factory.mktemp("true"))


@pytest.fixture(scope="session")
def tiny_nli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random cross-encoder with three labels."""
    import tiny_judges

    return tiny_judges.save_classifier(tmp_path_factory.mktemp("nli"))
