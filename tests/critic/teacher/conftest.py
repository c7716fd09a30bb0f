"""Makes `teaching_server` and `full_disk` importable from the tests in this folder, and gives a running one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from teaching_server import TeachingServer


@pytest.fixture
def server():
    server = TeachingServer()
    yield server
    server.stop()
