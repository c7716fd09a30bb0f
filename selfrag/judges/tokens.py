"""Reflection tokens as judges of any text: a critique is read where training put its token, one token a place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from selfrag.common.errors import UserError
from selfrag.decoding.segments import read_critique
from selfrag.judges.critiques import CritiqueJudge, CritiquePair
from selfrag.judges.sentences import role_site
from selfrag.prompting import Prompting, Turn
from selfrag.reflection.findings import Diagnostic, Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Cost, Judge, usual_scope
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet
from selfrag.reflection.requests import Generate, Generated, Steps, TokenIds, failure_of

PASSAGE_TOKENS = 256
"""Tokens of a passage that are read, as in decoding."""


class TokenJudge(Judge):
    """One group of reflection tokens, on the engine of whoever asks, whoever wrote the answer.

    The input is laid out as in training, and the group is read where its token is due: one token an input.
    """

    cost = Cost.ONE_TOKEN  # on the decoder's own prefix

    def __init__(
        self,
        prompting: Prompting,
        labels: LabelSet = ISSUP,
        passage_tokens: int = PASSAGE_TOKENS,
        name: str = "",
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
        self.prompting = prompting
        self.labels = labels
        self.passage_tokens = passage_tokens
        self.name = name or f"token_{labels.role}"
        self.scope = usual_scope(labels)

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input: the question, its first passage and the response as one segment."""
        vocabulary = self.prompting.vocabulary
        results = yield [
            Generate(self._prompt(state), 1, watch_ids=vocabulary.watch)
            for state in inputs
        ]
        reflections = []
        for state, result in zip(inputs, results, strict=True):
            if not isinstance(result, Generated):
                reflections.append(Reflection.failed(state, failure_of(result)))
                continue
            site = role_site(self.labels.role, state)
            evidence = state.passages[0].id if state.passages else None
            judgment = read_critique(
                vocabulary, self.labels, result.watched[0], str(site), evidence
            )
            reflections.append(Reflection.of(state, site, judgment))
        return reflections

    def _prompt(self, state: JudgeInput) -> TokenIds:
        """Return the ids up to where the token is due."""
        question = state.last("user")
        if question is None:
            raise UserError(f"{self.name}: the conversation has no user turn")
        history = [
            Turn(message.role, message.content) for message in state.messages[:question]
        ]
        vocabulary = self.prompting.vocabulary
        ids = [
            *self.prompting.prompt(state.messages[question].content, history=history)
        ]
        if state.passages:
            evidence = self.prompting.evidence(state.passages[0], self.passage_tokens)
            ids += [vocabulary.retrieve[0], *evidence.ids]
        else:
            ids.append(vocabulary.retrieve[1])
        if self.labels == ISREL:
            return tuple(ids)
        if state.passages:
            ids.append(vocabulary.group(ISREL)[0])
        if len(state.messages) - 1 > question:
            ids += self.prompting.codec.encode(state.messages[-1].content)
        if self.labels == ISUSE and state.passages:
            # the most favourable one, so that utility decides
            ids.append(vocabulary.group(ISSUP)[0])
        return tuple(ids)


class TokenCritiques(CritiqueJudge):
    """An intrinsic by the model's own IsRel, IsSup or IsUse."""

    name = "tokens"
    cost = Cost.ONE_TOKEN

    def __init__(
        self, intrinsic: str, prompting: Prompting, engine: Any = None
    ) -> None:
        """Judge an intrinsic of `VIEWS` by the tokens of the Self-RAG model of `prompting`, perhaps on an engine."""
        super().__init__(intrinsic)
        self.prompting = prompting
        self.engine = engine

    def judge_pairs(
        self, pairs: Sequence[tuple[JudgeInput, CritiquePair]]
    ) -> Steps[list[Judgment | Diagnostic]]:
        """Return the judgment of each pair; one request a pair."""
        by_group: dict[
            LabelSet, dict[int, JudgeInput]
        ] = {}  # inputs by the position of their pair
        for position, (state, pair) in enumerate(pairs):
            by_group.setdefault(pair.labels, {})[position] = _input_of(pair, state)
        judgments: dict[int, Judgment | Diagnostic] = {}
        for labels, inputs in by_group.items():
            reflections = yield from TokenJudge(self.prompting, labels).judge(
                list(inputs.values())
            )
            for position, reflection in zip(inputs, reflections, strict=True):
                judgments[position] = next(
                    chain[Judgment | Diagnostic](
                        reflection.judgments, reflection.diagnostics
                    )
                )
        return [judgments[position] for position in range(len(pairs))]


def _input_of(pair: CritiquePair, state: JudgeInput) -> JudgeInput:
    """Return the conversation with the pair's text as its reply, if one is judged, and the pair's passage alone."""
    messages = state.messages
    if pair.labels != ISREL:
        messages = (*messages[:-1], Message("assistant", pair.text))
    return JudgeInput(messages, (pair.passage,))
