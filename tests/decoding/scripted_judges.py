"""Judges for tests: judgments by a function of the input, asked for with real requests or with none; all recorded."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from written import PROMPTING

from selfrag.judges.sentences import judged_turn
from selfrag.reflection.findings import Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Message, SiteKind
from selfrag.reflection.judge import Cost, Judge, Scope, usual_scope
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import ISSUP, LabelSet
from selfrag.reflection.requests import Generate


def says(
    *distribution,
    labels=ISSUP,
    source=JudgmentSource.ADAPTER,
):
    """A judgment with this distribution."""
    return Judgment(labels, "somewhere", distribution, 1.0, source)


def seen(question, passages=(), text="", history=()):
    """What a judge of segments looks at."""
    turns = [Message(turn.role, turn.text) for turn in history]
    turns += [
        Message("user", question),
        *([Message("assistant", text)] if text else []),
    ]
    return JudgeInput(tuple(turns), tuple(passages))


@dataclass(eq=False)
class Scripted(Judge):
    """A judge that answers `verdict(input)`.

    Attributes:
        name: as in the policy.
        verdict: a judgment, several of them (one a sentence), or None for undefined.
        asks: whether each input costs a one-token request.
    """

    name: str
    verdict: Callable
    cost: Cost = Cost.ONE_TOKEN
    labels: LabelSet = ISSUP
    asks: bool = False
    scope: Scope | None = None
    inputs: list = field(default_factory=list)

    def __post_init__(self):
        self.scope = self.scope or usual_scope(self.labels)

    def judge(self, inputs):
        self.inputs += inputs
        if self.asks:
            yield [Generate(PROMPTING.prompt("Q"), 1) for _ in inputs]
        return [self._reflection(state) for state in inputs]

    def _reflection(self, state):
        made = self.verdict(state)
        judgments = (
            ()
            if made is None
            else (made,)
            if isinstance(made, Judgment)
            else tuple(made)
        )
        site = (
            state.in_message(SiteKind.RESPONSE, -1 % len(state.messages), state.begin)
            if state.text
            else None
        )
        return Reflection(
            state,
            tuple(
                Finding(site or judged_turn(state), judgment) for judgment in judgments
            ),
        )


def draw(seed, *parts):
    """Reproducible chance for some texts."""
    return random.Random(zlib.crc32(repr((seed, parts)).encode()))


def distribution(seed, *parts, size=3):
    """A distribution that depends on some texts only; ties are common."""
    chance = draw(seed, *parts)
    raw = [chance.choice((0.1, 0.2, 0.5, chance.random() + 0.01)) for _ in range(size)]
    return tuple(value / sum(raw) for value in raw)
