"""Label sets of the intrinsics. Values follow the paper (arXiv 2504.11704); surfaces on the wire are the dialects'.

Self-RAG's own sets are in `selfrag.reflection.labels`; roles are shared, so scores do not see who judged.
"""

from __future__ import annotations

from selfrag.reflection.labels import Label, LabelKind, LabelSet, Role

ANSWERABLE = LabelSet(
    Role.ANSWERABLE,
    (
        Label("answerable", 1.0, "answerable"),
        Label("unanswerable", 0.0, "unanswerable"),
    ),
)
"""Whether the passages answer the last user turn."""

CERTAINTY = LabelSet(
    Role.CERTAINTY,
    tuple(Label(f"{5 + 10 * d}%", (5 + 10 * d) / 100, str(d)) for d in range(10)),
)
"""Deciles: digit d means (5 + 10 d) percent; `token` is the digit."""

FAITHFULNESS = LabelSet(
    Role.SUPPORT,
    (
        Label("faithful", 1.0, "faithful"),
        Label("partial", 0.5, "partial"),
        Label("unfaithful", 0.0, "unfaithful"),
        Label("NA", 0.0, "NA", LabelKind.UNDEFINED),
    ),
)
"""A response sentence against the passages; NA where it claims nothing."""

# the lowest one is written downwards
_RANGES = (
    "0.1-0",
    *(f"0.{d}-0.{d + 1}" for d in range(1, 9)),
    "0.9-1.0",
)

FAITHFULNESS_BINS = LabelSet(
    Role.SUPPORT,
    (
        *(Label(name, (10 * d + 5) / 100, name) for d, name in enumerate(_RANGES)),
        Label("unanswerable", 0.0, "unanswerable", LabelKind.ABSTAIN),
        Label("NA", 0.0, "NA", LabelKind.UNDEFINED),
    ),
)
"""Faithfulness ranges of the paper's adapter, by their labels verbatim; the value is the middle of the range."""

_AS_RANGE = {"faithful": _RANGES[-1], "partial": _RANGES[5], "unfaithful": _RANGES[0]}
_AS_GRADE = dict.fromkeys(_RANGES, "partial") | {
    _RANGES[0]: "unfaithful",
    _RANGES[-1]: "faithful",
    "unanswerable": "NA",
}


def range_of(score: float) -> str:
    """Return the name of the range of `FAITHFULNESS_BINS` that a faithfulness from 0 to 1 falls into."""
    return _RANGES[min(9, int(score * 10 + 1e-9))]


def in_set(labels: LabelSet, name: str) -> str | None:
    """Return the label of a set of degrees of faithfulness that says what a label of another one says, or None.

    Below 0.1 is `unfaithful` (the paper's rule), from 0.9 `faithful`, and between them `partial`, which is as 0.5-0.6.
    Names that are no degree of faithfulness stay.
    """
    known = {**_AS_RANGE, **_AS_GRADE, "NA": "NA"}
    if name in labels.names or labels.role is not Role.SUPPORT or name not in known:
        return name
    label = known[name]
    return label if label in labels.names else None


CITED = LabelSet(
    Role.CITATION, (Label("cited", 1.0, "cited"), Label("uncited", 0.0, "none"))
)
"""Whether a response sentence rests on any passage."""

RELEVANCE = LabelSet(
    Role.RELEVANCE,
    (
        Label("relevant", 1.0, "relevant"),
        Label("partially relevant", 0.5, "partially relevant"),
        Label("irrelevant", 0.0, "irrelevant"),
    ),
)
"""One passage against the last user turn."""

CHANGED = LabelSet(
    Role.REWRITE,
    (Label("changed", 1.0, "changed"), Label("unchanged", 0.0, "unchanged")),
)
"""Whether the last user turn needs the conversation to be understood."""

CLEAR = LabelSet(
    Role.CLARITY, (Label("clear", 1.0, "CLEAR"), Label("unclear", 0.0, "unclear"))
)
"""Whether the last user turn can be answered without asking back."""

ANSWER_RELEVANCE = LabelSet(
    Role.UTILITY, (Label("relevant", 1.0, "true"), Label("not relevant", 0.0, "false"))
)
"""Whether a response is what was asked for."""

RISK = LabelSet(
    Role.COMPLIANCE, (Label("risk", 0.0, "yes"), Label("no risk", 1.0, "no"))
)
"""Guardian and factuality detection: yes means that something is wrong."""

POLICY = LabelSet(
    Role.COMPLIANCE,
    (
        Label("compliant", 1.0, "Yes"),
        Label("not compliant", 0.0, "No"),
        Label("ambiguous", 0.0, "Ambiguous", LabelKind.ABSTAIN),
    ),
)
"""Whether a scenario complies with a policy."""

CORRECTED = LabelSet(
    Role.SUPPORT, (Label("correct", 1.0, "none"), Label("corrected", 0.0, "corrected"))
)
"""Whether a response needed a correction."""

COMPLIANCE = LabelSet(
    Role.COMPLIANCE, (Label("yes", 1.0, "yes"), Label("no", 0.0, "no"))
)
"""Whether a requirement is met."""
