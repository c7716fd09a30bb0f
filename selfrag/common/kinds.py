"""Kinds of values in rows of files, for `selfrag.common.validation.validate`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("must be text that is not empty")
    return text


Filled = Annotated[str, AfterValidator(_filled)]
"""Text that is more than white space."""
