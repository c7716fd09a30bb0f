"""What a user did wrong is said in one line. Importable from every test, like `tiny`."""

from contextlib import contextmanager

import pytest

from selfrag.common.errors import UserError


@contextmanager
def refused(pattern=None):
    """Expect a `UserError` of one line that a pattern is found in."""
    with pytest.raises(UserError, match=pattern) as caught:
        yield caught
    assert "\n" not in str(caught.value)
