"""What is wrong with the form of a target (paper, Table 4): tokens missing, doubled or in the wrong place. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from selfrag.pages import GROUP_OF
from selfrag.reflection.labels import Role
from selfrag.training.rows import Evidence, Part, Token


def problems(target: Sequence[Part]) -> list[str]:
    """One line for each kind of problem, in the order in which they appear; empty for a target as the paper's."""
    return list(dict.fromkeys([*_frame(target), *_passages(target), *_tokens(target)]))


def _frame(target: Sequence[Part]) -> Iterator[str]:
    """A Retrieve token begins, one Utility token ends."""
    roles = [role(part) for part in target]
    uses = roles.count(Role.UTILITY)
    if roles[0] is not Role.RETRIEVE:
        yield "does not begin with a Retrieve token"
    if uses != 1:
        yield f"{'no' if not uses else 'more than one'} Utility token"
    elif roles[-1] is not Role.UTILITY:
        yield "the Utility token is not the last"


def _passages(target: Sequence[Part]) -> Iterator[str]:
    """`[Retrieval]`, passage and IsRel token follow each other."""
    for before, part, after in zip([None, *target], target, [*target[1:], None], strict=False):
        retrieval = part == Token("[Retrieval]")
        if retrieval and not isinstance(after, Evidence):
            yield "[Retrieval] without a passage after it"
        if isinstance(part, Evidence) and before != Token("[Retrieval]"):
            yield "a passage without [Retrieval] before it"
        if isinstance(part, Evidence) and (after is None or role(after) is not Role.RELEVANCE):
            yield "a passage without an IsRel token after it"


def _tokens(target: Sequence[Part]) -> Iterator[str]:
    """What needs evidence comes after some, and an irrelevant passage supports nothing."""
    evidence = irrelevant = False
    for part in target:
        evidence |= isinstance(part, Evidence)
        irrelevant = part == Token("[Irrelevant]") or (irrelevant and role(part) is not Role.RETRIEVE)
        if part == Token("[Continue to Use Evidence]") and not evidence:
            yield "[Continue to Use Evidence] before any passage"
        if role(part) is Role.SUPPORT and not evidence:
            yield "an IsSup token without a passage"
        elif role(part) is Role.SUPPORT and irrelevant:
            yield "an IsSup token after an irrelevant passage"


def role(part: Part) -> Role | None:
    """The group of a token; None for text and passages."""
    return GROUP_OF[part.token].role if isinstance(part, Token) else None
