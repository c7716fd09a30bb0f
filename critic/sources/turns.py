"""Conversations of one exchange, the only ones the paper's mix takes from chat data. Knows no data set."""

from __future__ import annotations

from collections.abc import Sequence

from critic.sources.raw import UnusableError

USER, ASSISTANT = "user", "assistant"


def exchange(turns: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Instruction and output of a conversation.

    Args:
        turns: (`USER`, `ASSISTANT` or another role, text) in order.

    Raises:
        UnusableError: anything but one question and one answer; later turns depend on what was said before.
    """
    roles = [role for role, _ in turns]
    if not roles:
        raise UnusableError("a conversation without turns")
    if other := next((role for role in roles if role not in (USER, ASSISTANT)), None):
        raise UnusableError(f"a conversation with a turn of {other}")
    if roles[0] != USER:
        raise UnusableError("a conversation whose beginning is cut off")
    if roles == [USER]:
        raise UnusableError("no output")
    if roles != [USER, ASSISTANT]:
        raise UnusableError("a conversation of more than one exchange")
    return turns[0][1], turns[1][1]
