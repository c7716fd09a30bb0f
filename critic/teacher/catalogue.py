"""Which form asks for the judgment of a case. Knows the forms, renders nothing."""

from __future__ import annotations

from critic.cases import Case, check
from critic.teacher.critique_forms import ISREL, ISSUP, ISUSE
from critic.teacher.forms import Form
from critic.teacher.retrieve_forms import WITH_EVIDENCE, WITH_INSTRUCTION, WITH_SENTENCE

FORMS: tuple[Form, ...] = (WITH_INSTRUCTION, WITH_SENTENCE, WITH_EVIDENCE, ISREL, ISSUP, ISUSE)
"""All forms."""


def form_of(case: Case) -> Form:
    """The form that asks for a judgment of this case.

    Raises:
        UserError: the case lacks what its group judges.
    """
    check(case)
    match case.group:
        case "IsRel":
            return ISREL
        case "IsSup":
            return ISSUP
        case "IsUse":
            return ISUSE
        case _ if case.evidence is not None:
            return WITH_EVIDENCE
        case _:
            return WITH_SENTENCE if case.preceding.strip() or case.output.strip() else WITH_INSTRUCTION
