"""What a user did wrong is said in one line. Importable from every test, like `tiny`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from selfrag.common.errors import UserError


@contextmanager
def refused(pattern: str | None = None) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a `UserError` of one line that a pattern is found in."""
    with pytest.raises(UserError, match=pattern) as caught:
        yield caught
    assert "\n" not in str(caught.value)
