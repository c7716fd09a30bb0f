"""A limit on the size of files, which plays a full disk. Bytecode is not written under it, where it would be cut."""

import os
import sys
from contextlib import contextmanager

LIMITED = """
import os, resource, sys
sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""
"""Code of a process that writes files of at most so many bytes."""


@contextmanager
def full_disk(size):
    """Write files of at most so many bytes, in this process and those that it starts."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    bytecode = sys.dont_write_bytecode, os.environ.get("PYTHONDONTWRITEBYTECODE", "")
    exec(LIMITED.format(size=size), {})
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = bytecode
