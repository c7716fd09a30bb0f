"""Makes `teaching_server` importable from the tests in this folder, and gives a running one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from teaching_server import TeachingServer


@pytest.fixture
def server():
    server = TeachingServer()
    yield server
    server.stop()
