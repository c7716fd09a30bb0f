"""Gates: reflectors that decide before anything is written: whether to search, with what, whether to answer. Sans-IO.

The flow "AD" of "A Library of LLM Intrinsics for RAG" is the gate that abstains; the others use the same judgments to
choose evidence. A judgment that is undefined never acts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from retrieval.passage import Passage
from selfrag.decoding.critics import Moment, Verdict, together
from selfrag.decoding.joining import Effect, Gate
from selfrag.decoding.policy import Action
from selfrag.decoding.requests import Result
from selfrag.decoding.trace import QUESTION
from selfrag.decoding.tree import Batch, Tree, counted
from selfrag.reflection.judgment import Judgment

Judging = Generator[Batch, list[Result], list[list[Judgment | None]]]


@dataclass(slots=True)
class Admitted:
    """What the gates let through.

    Attributes:
        passages: evidence that is left.
        abstained: nothing is to be written.
        reasons: which gate did what.
        judged: reflector and judgment, in the order asked.
    """

    passages: tuple[Passage, ...]
    abstained: bool = False
    reasons: list[str] = field(default_factory=list)
    judged: list[tuple[str, Judgment]] = field(default_factory=list)

    def note(self, gate: Gate, judgment: Judgment | None, done: str) -> bool:
        """Record a judgment; whether it is below the gate's threshold."""
        if judgment is None:
            return False
        self.judged.append((gate.reflector, judgment))
        below = judgment.score < gate.threshold
        if below:
            self.reasons.append(f"{gate.reflector} {judgment.score:.3f} < {gate.threshold:g}, {done}")
        return below


def route(tree: Tree) -> Generator[Batch, list[Result], tuple[Action, str, list[tuple[str, Judgment]]] | None]:
    """Whether to search at all, by the gates on the question alone; None if there are none or none is defined."""
    gates = _of(tree, "retrieve")
    if not gates or tree.policy.mode != "adaptive":
        return None
    rows = yield from _judge(tree, gates, [Moment(tree.question, tree.history)], QUESTION)
    asked = Admitted(())
    below = [asked.note(gate, row[0], "search") for gate, row in zip(gates, rows, strict=True)]
    if not asked.judged:
        return None
    sure = [f"{name} {judgment.score:.3f}, no search" for name, judgment in asked.judged]
    kept = "; ".join(asked.reasons or sure)
    return ("retrieve" if any(below) else "write"), kept, asked.judged


def admit(
    tree: Tree, searches: Sequence[tuple[Passage, ...]], *, first: bool
) -> Generator[Batch, list[Result], list[Admitted]]:
    """What is left of the passages of some searches.

    Args:
        tree: the question.
        searches: passages of each.
        first: whether this is the start of the answer, where a gate may abstain.
    """
    admitted = [Admitted(passages) for passages in searches]
    yield from _drop(tree, [one for one in admitted if one.passages])
    effects: list[Effect] = ["write", "abstain"] if first else ["write"]
    gates = [gate for effect in effects for gate in _of(tree, effect)]
    open_ones = [one for one in admitted if one.passages]
    if not gates or not open_ones:
        return admitted
    moments = [Moment(tree.question, tree.history, one.passages) for one in open_ones]
    rows = yield from _judge(tree, gates, moments, "question and passages")
    for position, one in enumerate(open_ones):
        for gate, row in zip(gates, rows, strict=True):
            done = "abstain" if gate.effect == "abstain" else "no evidence"
            if one.note(gate, row[position], done):
                one.passages = ()
                one.abstained |= gate.effect == "abstain"
    return admitted


def _drop(tree: Tree, admitted: Sequence[Admitted]) -> Generator[Batch, list[Result], None]:
    gates = _of(tree, "drop")
    passages = list({passage.key: passage for one in admitted for passage in one.passages}.values())
    if not gates or not passages:
        return
    moments = [Moment(tree.question, tree.history, (passage,)) for passage in passages]
    rows = yield from _judge(tree, gates, moments, "passage")
    position = {passage.key: i for i, passage in enumerate(passages)}
    for one in admitted:
        below = {
            passage.key
            for passage in one.passages
            for gate, row in zip(gates, rows, strict=True)
            if one.note(gate, row[position[passage.key]], f"passage {passage.id} left out")
        }
        one.passages = tuple(passage for passage in one.passages if passage.key not in below)


def _judge(tree: Tree, gates: Sequence[Gate], moments: Sequence[Moment], site: str) -> Judging:
    """A row for each gate with a judgment for each moment; a verdict on one passage is kept for the whole question."""
    verdicts = yield from together([_asked(tree, gate, moments) for gate in gates])
    return [[_mean(verdict, moment, site) for verdict, moment in zip(row, moments, strict=True)] for row in verdicts]


def _asked(tree: Tree, gate: Gate, moments: Sequence[Moment]) -> Generator[Batch, list[Result], list[Verdict]]:
    critic = tree.critics[gate.reflector]
    keys = [(critic.name, tuple(passage.key for passage in moment.passages)) for moment in moments]
    fresh = [(key, moment) for key, moment in zip(keys, moments, strict=True) if key not in tree.asked]
    if fresh:
        found = yield from counted(tree, critic.judge([moment for _, moment in fresh]))
        tree.asked |= {key: verdict for (key, _), verdict in zip(fresh, found, strict=True)}
    return [tree.asked[key] for key in keys]


def _mean(verdict: Verdict, moment: Moment, site: str) -> Judgment | None:
    one = moment.passages[0].id if len(moment.passages) == 1 else None
    return verdict.mean(site if one is None else f"{site} {one}", one)


def _of(tree: Tree, effect: Effect) -> list[Gate]:
    return [gate for gate in tree.policy.gates if gate.effect == effect]
