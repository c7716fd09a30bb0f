"""A disk with little room, for tests of what is written in pieces. Not a test."""

import contextlib
import sys

if sys.platform != "win32":
    import resource


@contextlib.contextmanager
def disk_of(size):
    """No file of this process may grow beyond `size` bytes: a write ends in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
