"""`Finding`: what one check saw and what to do about it. Pure value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        subject: what was looked at.
        detail: what was seen.
        status: `broken` keeps something from working, `note` is worth knowing.
        fix: what to do, a command to copy where there is one.
    """

    subject: str
    detail: str
    status: Status = "ok"
    fix: str = ""
