"""Helpers of other rooms on the path, a tiny judge of entailment, and finished runs to report on."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OTHERS = ("decoding", "intrinsics", "critic/augment", "render")
for folder in (HERE, *(HERE.parent / name for name in OTHERS)):
    sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def tiny_nli(tmp_path_factory):
    """Directory of a random cross-encoder with three labels."""
    import tiny_judges

    return tiny_judges.save_classifier(tmp_path_factory.mktemp("nli"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two finished runs over two files; the first keeps traces, the second fails on an item."""
    import reported

    return reported.make(tmp_path_factory.mktemp("reported"))
