"""One case through our codec: what was compared, and how it came out."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import StrEnum

from selfrag.errors import UserError
from selfrag.intrinsics.conformance.case import Case
from selfrag.intrinsics.conformance.check_chat import check_chat
from selfrag.intrinsics.conformance.check_completion import check_completion
from selfrag.intrinsics.conformance.compare import MismatchError
from selfrag.intrinsics.conformance.deviations import Deviation
from selfrag.intrinsics.dialects.completion import CompletionCodec
from selfrag.intrinsics.dialects.registry import Options, finder


class Verdict(StrEnum):
    """How a case came out."""

    PASS = "pass"  # noqa: S105 - no password
    DEVIATION = "deviation"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and how it came out.

    Attributes:
        case: which.
        verdict: passed, differs for named reasons, or failed.
        deviations: the reasons.
        failure: where it failed.
        checked: what was compared, such as `request` and `2 results`.
    """

    case: Case
    verdict: Verdict
    deviations: tuple[Deviation, ...] = ()
    failure: str = ""
    checked: tuple[str, ...] = ()


def check(case: Case) -> Outcome:
    """Run a case; nothing raises."""
    found: set[Deviation] = set()
    checked: list[str] = []
    before = copy.deepcopy(dict(case.raw))
    try:
        codec = case.codec(Options(exact=False, find=finder()))
        if isinstance(codec, CompletionCodec):
            check_completion(case, codec, found, checked)
        else:
            check_chat(case, codec, found, checked)
        if before != case.raw:
            raise MismatchError("the input was changed")
    except (MismatchError, UserError) as error:
        return Outcome(case, Verdict.FAIL, tuple(sorted(found)), str(error), tuple(checked))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        # A file that is no case, or a fault of ours: one failure, and the other cases still run.
        why = f"{type(error).__name__}: {error}"
        return Outcome(case, Verdict.FAIL, tuple(sorted(found)), why, tuple(checked))
    verdict = Verdict.DEVIATION if found else Verdict.PASS
    return Outcome(case, verdict, tuple(sorted(found)), "", tuple(checked))
