"""Reflection by prompts: how a chat model is asked to write a segment, and what it thinks of one.

The wording is data, `reflection_prompts.toml`. What is shown of question and passage never starts a line at the margin,
so it cannot pose as a task. All prompts of a question begin alike, with the question, then the passage: the engine
computes them once. A judgment of what was written follows it as another turn of the same conversation.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.judges.layout import indented, one_line, turn
from selfrag.judges.output import slot_judgment, slot_scores
from selfrag.judges.sentences import judged_turn, last_query
from selfrag.judges.wire import (
    DIALECT,
    ChatPrompt,
    Codec,
    Completion,
    ModelRequest,
    Slot,
    logsumexp,
)
from selfrag.reflection.findings import Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Message, Site, SiteKind
from selfrag.reflection.judge import Cost
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE, LabelSet
from selfrag.reflection.vocabulary import Scaling
from selfrag.tokenization import TextCodec

GROUPS: Mapping[str, LabelSet] = {
    "retrieve": RETRIEVE,
    "retrieve_later": RETRIEVE,
    "isrel": ISREL,
    "issup": ISSUP,
    "isuse": ISUSE,
}
"""Questions of the wording, and the group of labels that each answers."""
BEFORE = frozenset({"retrieve", "isrel"})
"""Questions that are asked before anything is written."""
EVIDENCE_FORMS: Mapping[str, tuple[bool, ...]] = {
    "retrieve": (False,),
    "retrieve_later": (True, False),
    "isrel": (True,),
    "issup": (True,),
    "isuse": (True, False),
}
"""Whether a question is asked with a passage, or also without one."""

PROMPT_JUDGE = "prompt_"
"""How the names of these judges begin."""


def judge_name(question: str) -> str:
    """Return what weights, guardrails and traces call the judge of a question of the wording."""
    return f"{PROMPT_JUDGE}{question}"


PROMPT_JUDGES: Mapping[str, LabelSet] = {
    judge_name(question): labels for question, labels in GROUPS.items()
}
"""Judges of chat models: each question, by the name that weights and guardrails call it."""


@dataclass(frozen=True, slots=True)
class LabelReply:
    """Words that stand for the labels of a group."""

    # one a label; labels at the end that have none cannot be meant
    words: tuple[str, ...]
    say: str  # tells the model what to reply


@dataclass(frozen=True, slots=True)
class ReflectionQuestion:
    """What a model is asked about a group."""

    task: str
    replies: tuple[LabelReply, ...]  # the first that fits the tokenizer is taken


@dataclass(frozen=True, slots=True)
class ReflectionWording:
    """All texts that a chat model is shown beside question, passage and answer."""

    question: str
    passage: str
    order: tuple[str, ...]  # of `question` and `passage` in a prompt
    write: str
    write_from_passage: str
    questions: Mapping[str, ReflectionQuestion]  # by the names of `GROUPS`

    def shown(self, state: JudgeInput, task: str) -> str:
        """Return the user turn of a question, with its passage where there is one, and a task."""
        question = indented(last_query(state).text.strip())
        passages = []
        for passage in state.passages:
            text = indented(passage.text.strip())
            passages.append(f"{self.passage}{one_line(passage.title)}\n  {text}")
        parts = {"question": [f"{self.question}{question}"], "passage": passages}
        first, second = self.order
        return turn(*parts[first], *parts[second], task)

    def messages(
        self, state: JudgeInput, task: str | None = None
    ) -> tuple[Message, ...]:
        """Return the conversation in which the answer to the last question is written, or with a task in its place."""
        question = state.last("user") or 0
        if task is None:
            task = self.write
            if state.passages:
                task = self.write_from_passage
        shown = Message("user", self.shown(state, task))
        return (*state.messages[:question], shown, *state.messages[question + 1 :])


@cache
def reflection_wording() -> ReflectionWording:
    """Return the wording of this package."""
    table: dict[str, Any] = tomllib.loads(
        (files(__package__) / "reflection_prompts.toml").read_text(encoding="utf-8")
    )
    questions = {}
    for name in GROUPS:
        entry = table.pop(name)
        replies = tuple(
            LabelReply(tuple(reply["words"]), reply["say"])
            for reply in entry["replies"]
        )
        questions[name] = ReflectionQuestion(entry["task"], replies)
    order = tuple(table.pop("order"))
    return ReflectionWording(**table, order=order, questions=questions)


LabelSurfaces = tuple[tuple[str, ...], ...]
"""For each label what a model may write for it."""


def choose_reply(
    question: ReflectionQuestion, codec: TextCodec | None
) -> tuple[LabelReply, LabelSurfaces]:
    """Return the first reply whose words are single tokens of a tokenizer, with what counts for each label.

    A word counts with a capital letter as well. Without a tokenizer the first reply is taken as it is.

    Raises:
        UserError: the tokenizer cannot tell the words of any reply apart by one token.
    """
    for reply in question.replies:
        if codec is None:
            return reply, tuple(map(_spellings, reply.words))
        surfaces = tuple(_single_tokens(codec, word) for word in reply.words)
        ids = [codec.encode(surface)[0] for label in surfaces for surface in label]
        if all(surfaces) and len(set(ids)) == len(ids):
            return reply, surfaces
    words = ", ".join(repr(word) for reply in question.replies for word in reply.words)
    raise UserError(
        f"the model cannot be asked to reflect: its tokenizer writes none of {words} as a token of its own"
    )


def _spellings(word: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((word, word.capitalize())))


def _single_tokens(codec: TextCodec, word: str) -> tuple[str, ...]:
    return tuple(text for text in _spellings(word) if len(codec.encode(text)) == 1)


@dataclass(frozen=True)
class ReflectionCodec(Codec):
    """Asks one question of the wording, as a `Codec`: a distribution over the labels from one constrained token."""

    intrinsic: str  # one of `GROUPS`
    wording: ReflectionWording
    task: str  # the question with what to reply
    surfaces: LabelSurfaces
    # shortens a passage to what may be shown
    cut: Callable[[Passage], Passage] = lambda passage: passage
    extra: Mapping[str, Any] = field(default_factory=dict)  # see `ChatPrompt`
    scaling: Scaling | None = None  # calibrates the probabilities
    bare_scaling: Scaling | None = None  # those of prompts without a passage
    dialect = DIALECT
    # the model's own critique: every candidate has it, as it would have its token
    cost = Cost.INLINE

    @property
    def labels(self) -> LabelSet:
        """Return the group of labels."""
        return GROUPS[self.intrinsic]

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return the conversation with the task, and one slot for the label."""
        state = replace(state, passages=tuple(map(self.cut, state.passages[:1])))
        if self.intrinsic in BEFORE:
            turns = state.messages
            question = state.last("user")
            if question is not None:
                turns = turns[: question + 1]
            asking = replace(state, messages=turns)
            messages = self.wording.messages(asking, self.task)
        elif state.messages[-1].role == "assistant":
            messages = (*self.wording.messages(state), Message("user", self.task))
        else:
            raise UserError(
                f"prompt_{self.intrinsic} judges a reply; the last turn must be of role assistant"
            )
        slot = Slot(tuple(chain.from_iterable(self.surfaces)), self._site(state))
        return ModelRequest(
            state, ChatPrompt(messages, extra=self.extra, own=self.task), slots=(slot,)
        )

    def decode(self, request: ModelRequest, completion: Completion) -> Reflection:
        """Return the one judgment."""
        (slot,) = request.slots
        (scores,) = slot_scores(request, completion)
        by_label: list[float] | None = None
        if scores is not None:
            by_label = []
            begin = 0
            for label in self.surfaces:
                by_label.append(logsumexp(scores[begin : begin + len(label)]))
                begin += len(label)
            by_label += [-math.inf] * (len(self.labels) - len(by_label))
        judgment, notes = slot_judgment(self.labels, by_label, slot.site, request, 0)
        scaling = self.scaling if request.state.passages else self.bare_scaling
        if judgment is not None and scaling is not None:
            judgment = scaling(judgment)
        return Reflection(
            request.state, (Finding(slot.site, judgment),), None, completion.text, notes
        )

    def _site(self, state: JudgeInput) -> Site:
        if self.intrinsic in BEFORE:
            if state.passages:
                return state.in_passage(SiteKind.PASSAGE, 0)
            return last_query(state)
        if state.begin:
            last = len(state.messages) - 1
            return state.in_message(SiteKind.RESPONSE, last, state.begin)
        return judged_turn(state)


def reflection_codecs(
    wording: ReflectionWording,
    codec: TextCodec | None,
    scalings: Mapping[str, Scaling],
    **settings: Any,
) -> dict[str, ReflectionCodec]:
    """Return a codec for each question of the wording, with words that the tokenizer writes as one token."""
    codecs = {}
    for name, question in wording.questions.items():
        reply, surfaces = choose_reply(question, codec)
        scaling = scalings.get(name)
        bare = scalings.get(without_passage(name), scaling)
        task = f"{question.task} {reply.say}"
        codecs[name] = ReflectionCodec(
            name,
            wording,
            task,
            surfaces,
            scaling=scaling,
            bare_scaling=bare,
            **settings,
        )
    return codecs


def without_passage(question: str) -> str:
    """Return the key of the scaling of a question where it is asked without a passage."""
    return f"{question} without a passage"
