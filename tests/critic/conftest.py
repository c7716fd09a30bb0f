"""Makes the modules beside these tests and the parser of pages importable, and gives a running teacher."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = (HERE / "augment", HERE / "student", HERE / "teacher", HERE.parent / "render")
sys.path[:0] = map(str, FOLDERS)


@pytest.fixture
def server():
    from teaching_server import TeachingServer

    server = TeachingServer()
    yield server
    server.stop()
