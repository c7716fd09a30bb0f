"""Reflection tokens as judges of any text: a critique is read where training put its token, one token a place.

What was fitted to a model comes in files that it brings: `combined.json` weighs its tokens with words in common by a
logistic regression; `certainty.json` calibrates the path scores of its answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from retrieval.passage import Passage
from selfrag.common.errors import EngineError, UserError
from selfrag.common.reading import read_json
from selfrag.common.untrusted import printable
from selfrag.decoding.requests import Failed, Generate
from selfrag.decoding.segments import judge
from selfrag.engines.base import Engine, pump
from selfrag.intrinsics.contract import Code, Cost, Diagnostic, Finding, Message, Reflection, Site, State, Steps
from selfrag.intrinsics.execution.critiques import Critiques, Pair, overlap, plain, shown
from selfrag.intrinsics.labels import CERTAINTY
from selfrag.intrinsics.sentences import judged_turn
from selfrag.intrinsics.state import Scope
from selfrag.prompting import Prompting, Turn
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet, Role
from selfrag.reflection.vocabulary import Vocabulary

PASSAGE_TOKENS = 256
"""Tokens of a passage that are read, as in decoding."""


@dataclass(frozen=True, slots=True)
class TokenReflector:
    """A `Reflector` of one group of reflection tokens, on the engine of the decoder, whoever wrote the answer.

    The state is laid out as in training, and the group is read where its token is due: one token a state.
    """

    prompting: Prompting  # codec, vocabulary and layout of the Self-RAG model
    labels: LabelSet = ISSUP  # `ISREL`, `ISSUP` or `ISUSE`
    passage_tokens: int = PASSAGE_TOKENS  # a passage's body is cut here
    name: str = ""  # what policies, weights and traces call it
    cost: ClassVar[Cost] = Cost.ONE_TOKEN  # on the decoder's own prefix

    def __post_init__(self) -> None:
        if self.labels not in (ISREL, ISSUP, ISUSE):
            raise UserError(f"{self.labels!r} is no critique; give ISREL, ISSUP or ISUSE")
        if not self.name:
            object.__setattr__(self, "name", f"token_{self.labels.role}")

    @property
    def role(self) -> Role:
        """Of the group."""
        return self.labels.role

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


@dataclass(frozen=True, slots=True)
class RelevanceScorer:
    """The model's own IsRel as a scorer for `retrieval.search`: the probability of `[Relevant]`.

    A passage costs a prefill and one token; those of all queries share the engine's batches.
    """

    prompting: Prompting  # of the Self-RAG model
    engine: Engine
    passage_tokens: int = PASSAGE_TOKENS  # a passage's body is cut here

    def __call__(self, queries: Sequence[str], passages: Sequence[Sequence[Passage]], /) -> list[list[float]]:
        """For each query a number from 0 to 1 for each passage; an `EngineError` says why one has none."""
        pairs = [(query, passage) for query, found in zip(queries, passages, strict=True) for passage in found]
        states = [State((Message("user", query),), (passage,)) for query, passage in pairs]
        reflector = TokenReflector(self.prompting, ISREL, self.passage_tokens)
        judged = iter(pump(self.engine, reflector.reflect(states)))
        return [[_relevance(next(judged)) for _ in found] for found in passages]


def _relevance(reflection: Reflection) -> float:
    judgment = reflection.findings[0].judgment
    if judgment is None:
        raise EngineError(f"IsRel of a passage could not be read: {reflection.diagnostics[0].message}")
    return judgment.probability("Relevant")


def _turn(state: State, index: int) -> Site:
    scope = Scope.RESPONSE if state.messages[index].role == "assistant" else Scope.QUERY
    return state.in_message(scope, index)


def _supported(labels: LabelSet, vocabulary: Vocabulary, state: State) -> tuple[int, ...]:
    """IsUse follows IsSup where there is evidence; the most favourable one, so that utility alone decides."""
    return (vocabulary.group(ISSUP)[0],) if labels == ISUSE and state.passages else ()


@dataclass(frozen=True)
class Tokens(Critiques):
    """An intrinsic by the model's own IsRel, IsSup or IsUse."""

    prompting: Prompting  # of the Self-RAG model
    name: ClassVar[str] = "tokens"
    cost: ClassVar[Cost] = Cost.ONE_TOKEN

    def judged(self, pairs: Sequence[tuple[State, Pair]]) -> Steps[list[Judgment | Diagnostic]]:
        """The judgment of each pair; one request a pair."""
        found: dict[int, Judgment | Diagnostic] = {}
        for labels in dict.fromkeys(pair.labels for _, pair in pairs):
            places = [at for at, (_, pair) in enumerate(pairs) if pair.labels == labels]
            states = [_alone(*pairs[at]) for at in places]
            reflections = yield from TokenReflector(self.prompting, labels).reflect(states)
            for at, reflection in zip(places, reflections, strict=True):
                judgment = reflection.findings[0].judgment
                found[at] = reflection.diagnostics[0] if judgment is None else judgment
        return [found[at] for at in range(len(pairs))]


def _alone(state: State, pair: Pair) -> State:
    """The conversation with the pair's text as its reply, if one is judged, and the pair's passage alone."""
    messages = state.messages
    if pair.labels != ISREL:
        messages = (*messages[: len(messages) - 1], Message("assistant", pair.text))
    return State(messages, (pair.passage,))


FORMAT = 1
LEAST = 1e-4
"""Probabilities are kept this far from 0 and 1 before their logarithms are taken."""


def features(judgment: Judgment, pair: Pair) -> Mapping[str, float]:
    """What is weighed: `token`, log-odds of the group's score; `overlap`, the share of content words in the passage."""
    p = min(max(judgment.score, LEAST), 1 - LEAST)
    return MappingProxyType({"token": math.log(p / (1 - p)), "overlap": overlap(pair.text, shown(pair.passage))})


FEATURES = ("token", "overlap")


@dataclass(frozen=True, slots=True)
class Weighing:
    """A logistic regression over `features`."""

    intrinsic: str  # what it was learned for
    model: str  # SHA-256 of the weights of the model whose tokens were read
    bias: float
    weights: Mapping[str, float]  # by the names of the features

    @classmethod
    def read(cls, path: Path) -> Weighing:
        """Read a file that `write` made; refuses anything else."""
        try:
            record = read_json(path)
            if record.pop("format") != FORMAT:
                raise UserError(f"it has another format; this version reads {FORMAT}")
            found = cls(**record)
            numbers = [found.bias, *(found.weights[name] for name in FEATURES)]
            if set(found.weights) != set(FEATURES) or not all(math.isfinite(float(one)) for one in numbers):
                raise UserError(f"it needs finite weights of {' and '.join(FEATURES)}")
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = "make it again by scripts/demo_model/learn_combined.py"
            raise UserError(f"{path} cannot be used: {error}; {remedy}") from error
        return found

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps({"format": FORMAT} | asdict(self), indent=2) + "\n", encoding="utf-8")

    def probability(self, judgment: Judgment, pair: Pair) -> float:
        """Probability that the text is supported, or the passage relevant."""
        found = features(judgment, pair)
        logit = self.bias + math.fsum(self.weights[name] * found[name] for name in FEATURES)
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


@dataclass(frozen=True)
class Combined(Tokens):
    """An intrinsic by reflection tokens and words in common. What is not supported in full is unsupported."""

    weighing: Weighing
    name: ClassVar[str] = "combined"

    def judged(self, pairs: Sequence[tuple[State, Pair]]) -> Steps[list[Judgment | Diagnostic]]:
        """The judgment of each pair; one request a pair."""
        found = yield from Tokens.judged(self, pairs)
        return [
            self._weighed(one, pair) if isinstance(one, Judgment) else one
            for one, (_, pair) in zip(found, pairs, strict=True)
        ]

    def _weighed(self, judgment: Judgment, pair: Pair) -> Judgment:
        return plain(pair, self.weighing.probability(judgment, pair), Source.COMBINED, judgment.coverage)


@dataclass(frozen=True, slots=True)
class ScoreCalibrator:
    """Path scores to how often such answers are right: a rising table, interpolated."""

    scores: tuple[float, ...]  # rising [n]
    accuracy: tuple[float, ...]  # the share of right answers there, rising [n]

    def __call__(self, score: float) -> float:
        """Certainty that an answer with this path score is right, from 0 to 1."""
        return float(np.interp(score, self.scores, self.accuracy))

    @classmethod
    def read(cls, path: Path) -> ScoreCalibrator:
        """Read a file that `write` made; refuses anything else."""
        try:
            record = read_json(path)
            found = cls(*(tuple(map(float, record[name])) for name in ("scores", "accuracy")))
            lists = (found.scores, found.accuracy)
            if not found.scores or len(set(map(len, lists))) > 1 or any(list(one) != sorted(one) for one in lists):
                raise UserError("it needs two rising lists of one length")
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = "make it again by scripts/demo_model/learn_certainty.py"
            raise UserError(f"{path} cannot be used: {error}; {remedy}") from error
        return found

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TraceCertainty:
    """An `Execution` of uncertainty for answers of this library; any other conversation is undefined."""

    calibrator: ScoreCalibrator
    name: ClassVar[str] = "tokens"
    cost: ClassVar[Cost] = Cost.INLINE

    def steps(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state; asks no engine."""
        return [self._reflection(state) for state in states]
        yield []  # a generator, as every execution

    def _reflection(self, state: State) -> Reflection:
        site = judged_turn(state)
        trace = None if state.answer is None else state.answer.trace
        if trace is None or trace.best is None:
            note = Diagnostic(Code.MISSING, "tokens tell the certainty of an answer of this library, with its trace")
            return Reflection(state, (Finding(site, None),), diagnostics=(note,))
        certainty = self.calibrator(trace.nodes[trace.best].path_score)
        return Reflection(state, (Finding(site, Judgment(CERTAINTY, str(site), deciles(certainty), 1.0)),))


def deciles(certainty: float) -> tuple[float, ...]:
    """A distribution over the ten deciles whose expectation is `certainty`, kept between 0.05 and 0.95."""
    at = min(max(certainty, 0.05), 0.95) * 10 - 0.5
    low = min(int(at), 8)
    return tuple(1 - (at - low) if place == low else at - low if place == low + 1 else 0.0 for place in range(10))
