"""`TokenReflector`: reflection tokens of a Self-RAG model as a reflector on any conversation, whoever wrote the answer.

The state is laid out as in training, and the group is read where its token is due: one token a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfrag.decoding.requests import Failed, Generate
from selfrag.decoding.segments import judge
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Code, Cost, Diagnostic, Finding, Reflection, Scope, Site, State, Steps
from selfrag.prompting import Prompting, Turn
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet, Role
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.untrusted import printable


@dataclass(frozen=True, slots=True)
class TokenReflector:
    """A `Reflector` of one group of reflection tokens, on the engine of the decoder."""

    prompting: Prompting  # codec, vocabulary and layout of the Self-RAG model
    labels: LabelSet = ISSUP  # `ISREL`, `ISSUP` or `ISUSE`
    passage_tokens: int = 256  # a passage's body is cut here
    name: str = ""  # what policies, weights and traces call it

    def __post_init__(self) -> None:
        if self.labels not in (ISREL, ISSUP, ISUSE):
            raise UserError(f"{self.labels!r} is no critique; give ISREL, ISSUP or ISUSE")
        if not self.name:
            object.__setattr__(self, "name", f"token_{self.labels.role}")

    @property
    def role(self) -> Role:
        """Of the group."""
        return self.labels.role

    @property
    def cost(self) -> Cost:
        """One token on the decoder's own prefix."""
        return Cost.ONE_TOKEN

    def reflect(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state: the question, its first passage and the response as one segment."""
        vocabulary = self.prompting.vocabulary
        prompts = [self._prompt(state) for state in states]
        results = yield [Generate(ids, 1, watch_ids=vocabulary.watch) for ids, _ in prompts]
        found = []
        for state, (_, site), result in zip(states, prompts, results, strict=True):
            if isinstance(result, Failed):
                note = Diagnostic(Code.FAILED, printable(result.reason))
                found.append(Reflection(state, (Finding(site, None),), diagnostics=(note,)))
                continue
            evidence = state.passages[0].id if state.passages else None
            judgment = judge(vocabulary, self.labels, result.watched[0], str(site), evidence)
            found.append(Reflection(state, (Finding(site, judgment),)))
        return found

    def _prompt(self, state: State) -> tuple[tuple[int, ...], Site]:
        """Ids up to where the token is due, and what is judged there."""
        question = state.last("user")
        if question is None:
            raise UserError(f"{self.name}: the conversation has no user turn")
        history = [Turn(message.role, message.content) for message in state.messages[:question]]
        ids = self.prompting.prompt(state.messages[question].content, history=history)
        vocabulary = self.prompting.vocabulary
        if state.passages:
            evidence = self.prompting.evidence(state.passages[0], self.passage_tokens)
            ids = (*ids, vocabulary.retrieve[0], *evidence.ids)
            if self.labels != ISREL:
                ids = (*ids, vocabulary.group(ISREL)[0])
        else:
            ids = (*ids, vocabulary.retrieve[1])
        if self.labels == ISREL:
            return ids, state.in_passage(Scope.PASSAGE, 0) if state.passages else _turn(state, question)
        last = len(state.messages) - 1
        text = state.messages[last].content if last > question else ""
        return (*ids, *self.prompting.codec.encode(text), *_supported(self.labels, vocabulary, state)), _turn(
            state, last
        )


def _turn(state: State, index: int) -> Site:
    scope = Scope.RESPONSE if state.messages[index].role == "assistant" else Scope.QUERY
    return state.in_message(scope, index)


def _supported(labels: LabelSet, vocabulary: Vocabulary, state: State) -> tuple[int, ...]:
    """IsUse follows IsSup where there is evidence; the most favourable one, so that utility alone decides."""
    return (vocabulary.group(ISSUP)[0],) if labels == ISUSE and state.passages else ()
