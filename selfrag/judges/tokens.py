"""Reflection tokens as judges of any text: a critique is read where training put its token, one token a place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfrag.common.errors import UserError
from selfrag.decoding.segments import read_critique
from selfrag.judges.critiques import CritiqueJudge, CritiquePair
from selfrag.prompting import Prompting, Turn
from selfrag.reflection.findings import Diagnostic, Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Message, Site, SiteKind
from selfrag.reflection.judge import Cost, Judge, usual_scope
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet
from selfrag.reflection.requests import Generate, Generated, Steps, failure_of
from selfrag.reflection.vocabulary import Vocabulary

PASSAGE_TOKENS = 256
"""Tokens of a passage that are read, as in decoding."""


class TokenJudge(Judge):
    """One group of reflection tokens, on the engine of whoever asks, whoever wrote the answer.

    The input is laid out as in training, and the group is read where its token is due: one token an input.
    """

    cost = Cost.ONE_TOKEN  # on the decoder's own prefix

    def __init__(
        self, prompting: Prompting, labels: LabelSet = ISSUP, passage_tokens: int = PASSAGE_TOKENS, name: str = ""
    ) -> None:
        """Judge by a group.

        Args:
            prompting: codec, vocabulary and layout of the Self-RAG model.
            labels: `ISREL`, `ISSUP` or `ISUSE`.
            passage_tokens: a passage's body is cut here.
            name: what policies, weights and traces call it; by default `token_issup` and the like.
        """
        if labels not in (ISREL, ISSUP, ISUSE):
            raise UserError(f"{labels!r} is no critique; give ISREL, ISSUP or ISUSE")
        self.prompting, self.labels, self.passage_tokens = prompting, labels, passage_tokens
        self.name, self.scope = name or f"token_{labels.role}", usual_scope(labels)

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input: the question, its first passage and the response as one segment."""
        vocabulary = self.prompting.vocabulary
        prompts = [self._prompt(state) for state in inputs]
        results = yield [Generate(ids, 1, watch_ids=vocabulary.watch) for ids, _ in prompts]
        reflections = []
        for state, (_, site), result in zip(inputs, prompts, results, strict=True):
            if not isinstance(result, Generated):
                reflections.append(Reflection.failed(state, failure_of(result)))
                continue
            evidence = state.passages[0].id if state.passages else None
            judgment = read_critique(vocabulary, self.labels, result.watched[0], str(site), evidence)
            reflections.append(Reflection(state, (Finding(site, judgment),)))
        return reflections

    def _prompt(self, state: JudgeInput) -> tuple[tuple[int, ...], Site]:
        """Return the ids up to where the token is due, and what is judged there."""
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
            return ids, state.in_passage(SiteKind.PASSAGE, 0) if state.passages else _turn(state, question)
        last = len(state.messages) - 1
        text = state.messages[last].content if last > question else ""
        return (*ids, *self.prompting.codec.encode(text), *_supported(self.labels, vocabulary, state)), _turn(
            state, last
        )


def _turn(state: JudgeInput, index: int) -> Site:
    scope = SiteKind.RESPONSE if state.messages[index].role == "assistant" else SiteKind.QUERY
    return state.in_message(scope, index)


def _supported(labels: LabelSet, vocabulary: Vocabulary, state: JudgeInput) -> tuple[int, ...]:
    """Return the IsSup token before IsUse where there is evidence: the most favourable one, so that utility decides."""
    return (vocabulary.group(ISSUP)[0],) if labels == ISUSE and state.passages else ()


class TokenCritiques(CritiqueJudge):
    """An intrinsic by the model's own IsRel, IsSup or IsUse."""

    name = "tokens"
    cost = Cost.ONE_TOKEN

    def __init__(self, intrinsic: str, prompting: Prompting, engine: Any = None) -> None:
        """Judge an intrinsic of `VIEWS` by the tokens of the Self-RAG model of `prompting`, perhaps on an engine."""
        super().__init__(intrinsic)
        self.prompting, self.engine = prompting, engine

    def judge_pairs(self, pairs: Sequence[tuple[JudgeInput, CritiquePair]]) -> Steps[list[Judgment | Diagnostic]]:
        """Return the judgment of each pair; one request a pair."""
        judgments: dict[int, Judgment | Diagnostic] = {}
        for labels in dict.fromkeys(pair.labels for _, pair in pairs):
            places = [at for at, (_, pair) in enumerate(pairs) if pair.labels == labels]
            inputs = [_alone(*pairs[at]) for at in places]
            reflections = yield from TokenJudge(self.prompting, labels).judge(inputs)
            for at, reflection in zip(places, reflections, strict=True):
                judgments[at] = reflection.judgments[0] if reflection.judgments else reflection.diagnostics[0]
        return [judgments[at] for at in range(len(pairs))]


def _alone(state: JudgeInput, pair: CritiquePair) -> JudgeInput:
    """Return the conversation with the pair's text as its reply, if one is judged, and the pair's passage alone."""
    messages = state.messages
    if pair.labels != ISREL:
        messages = (*messages[: len(messages) - 1], Message("assistant", pair.text))
    return JudgeInput(messages, (pair.passage,))
