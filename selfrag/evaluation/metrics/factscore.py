"""FactScore: the share of an answer's atomic facts that a knowledge source supports.

Source: FActScore (arXiv 2305.14251) and its code: the mean over answers that are not abstentions; an answer of at most
`GAMMA` facts is multiplied by exp(1 - gamma / facts). Facts are found by a `Splitter` and checked by any judge of
entailment, or both by the official tool (`python -m factscore.factscorer --input_path FILE.jsonl`, in an environment of
its own), whose files are written and read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from retrieval.passage import Retriever
from retrieval.sentences import sentences
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.common.reading import read_json
from selfrag.decoding.refusals import abstains
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.entailment import Remembered
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.normalisation import without_marks
from selfrag.intrinsics.named import chat_model
from selfrag.judges.entailment import premise
from selfrag.judges.layout import one_line
from selfrag.judges.sentences import rules
from selfrag.judges.wire import ChatPrompt, Completion, Executor, ModelRequest
from selfrag.reflection.inputs import JudgeInput, Message

GAMMA = 10
NAMES = ("factscore", "factscore_unpenalised", "facts", "responds")
PASSAGES = 5
"""Passages that a fact is checked against (FActScore, section 4)."""

TASK = (
    "Break the following sentence down into independent facts. Write each fact as a short sentence that can be"
    " understood alone, on a line of its own that begins with '- ', and write nothing else."
)
_BULLET = re.compile(r"\s*(?:[-*\u2022]|\d{1,3}[.)])\s+(\S.*)")
LONGEST = 400
"""Tokens of the facts of one sentence."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement that cannot be split further; `supported` is None where the judge gave no verdict."""

    text: str
    supported: bool | None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one answer, none where it abstains; `failed` says why they could not be found, or is empty."""

    facts: tuple[Fact, ...] = ()
    failed: str = ""

    @property
    def decided(self) -> bool:
        """Whether every fact was found and judged."""
        return not self.failed and all(fact.supported is not None for fact in self.facts)


def penalty(facts: int) -> float:
    """Factor for an answer of so many facts, at least one."""
    return 1.0 if facts > GAMMA else math.exp(1 - GAMMA / facts)


def parts(found: Facts | None) -> Mapping[str, Part | None]:
    """What an answer adds to each figure of `NAMES`.

    An abstention, or a failed item (None), counts in `responds` only, and an answer with a missing verdict nowhere.
    """
    if found is not None and not found.decided:
        return dict.fromkeys(NAMES)
    facts = () if found is None else found.facts
    if not facts:
        return {**dict.fromkeys(NAMES), "responds": (0.0, 1.0)}
    share = sum(bool(fact.supported) for fact in facts) / len(facts)
    values = (share * penalty(len(facts)), share, float(len(facts)), 1.0)
    return {name: (value, 1.0) for name, value in zip(NAMES, values, strict=True)}


# Finding and checking facts


class Splitter(Protocol):
    """Finds the facts of texts."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides what it finds, as plain values."""

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Facts of each text, none for an empty one; None where they could not be found."""


@dataclass(frozen=True)
class SentenceSplitter:
    """Every sentence is a fact: no model is needed, and a sentence with one wrong detail is wrong as a whole."""

    name: str = "sentences"

    def identity(self) -> Mapping[str, Any]:
        """The kind alone."""
        return {"kind": "sentences"}

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Sentences of each text."""
        return [tuple(_sentences(text)) for text in texts]


@dataclass(frozen=True)
class PromptedSplitter:
    """A chat model asked for the facts of each sentence, as the official tool asks InstructGPT.

    `about` is what decides the model's answers: model, engine or address.
    """

    executor: Executor
    name: str
    about: Mapping[str, Any]

    def identity(self) -> Mapping[str, Any]:
        """Kind, model and prompt."""
        return {"kind": "prompted", **self.about, "task": TASK}

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Facts of all sentences of each text; None where a request failed or a reply had no list."""
        lines = [_sentences(text) for text in texts]
        results = iter(self.executor.run([_request(line) for own in lines for line in own]))
        found: list[tuple[str, ...] | None] = []
        for own in lines:
            replies = [next(results) for _ in own]
            facts = [read_facts(reply.text) if isinstance(reply, Completion) else () for reply in replies]
            found.append(tuple(fact for some in facts for fact in some) if all(facts) else None)
        return found


def load_splitter(spec: str) -> Splitter:
    """The splitter of a name: `sentences`, or a model to prompt, `MODEL` or `MODEL@URL` as for `chat_model`."""
    if spec == "sentences":
        return SentenceSplitter()
    executor, name, about = chat_model(spec)
    return PromptedSplitter(executor, f"facts by {name}", about)


def read_facts(text: str) -> tuple[str, ...]:
    """Lines of a reply that are items of a list; other lines are talk around it."""
    matches = (_BULLET.fullmatch(line.rstrip()) for line in text.splitlines())
    return tuple(match[1] for match in matches if match)


def _request(sentence: str) -> ModelRequest:
    message = Message("user", f"{TASK}\n\nSentence: {one_line(sentence)}")
    return ModelRequest(JudgeInput((Message("assistant", sentence),)), ChatPrompt((message,)), max_tokens=LONGEST)


def _sentences(text: str) -> list[str]:
    said = without_marks(text)
    return [said[start:end] for start, end in sentences(said, rules)]


def check(
    texts: Sequence[str], topics: Sequence[str], splitter: Splitter, retriever: Retriever, judge: Remembered
) -> list[Facts]:
    """Find the facts of each text and decide on each of them.

    A fact is supported if the passages that are found for topic and fact entail it. The official tool searches the
    page of the topic only; here the index decides what there is to find. An abstention states no facts. Every distinct
    pair is asked once, all in one call.
    """
    split = splitter.split(["" if abstains(text) else text for text in texts])
    queries = [[f"{topic} {fact}" for fact in facts or ()] for topic, facts in zip(topics, split, strict=True)]
    unique = list(dict.fromkeys(query for own in queries for query in own))
    found = dict(zip(unique, retriever(unique, PASSAGES) if unique else (), strict=True))
    claims = [
        [("\n\n".join(map(premise, found[query])), fact) for query, fact in zip(own, facts or (), strict=True)]
        for own, facts in zip(queries, split, strict=True)
    ]
    asked = list(dict.fromkeys(pair for own in claims for pair in own if pair[0]))
    verdicts = dict(zip(asked, judge.entails(asked) if asked else (), strict=True))
    checked = []
    for facts, own in zip(split, claims, strict=True):
        # A fact that nothing is found for has no support.
        judged = tuple(Fact(pair[1], verdicts[pair] if pair[0] else False) for pair in own)
        checked.append(Facts(judged, f"{splitter.name} found no list of facts" if facts is None else ""))
    return checked


# The official tool's files


def topic_of(item: Item) -> str:
    """Name of the person or thing that an item is about."""
    if not item.topic.strip():
        raise UserError(f"item {item.id!r} has no 'topic'; FactScore looks facts up under the name of the topic")
    return item.topic


def write_input(path: Path, items: Sequence[Item], outputs: Mapping[str, Output | None]) -> int:
    """Write the tool's input, a line an item: topic and answer; an abstention and a failed item are empty answers.

    Decisions will be in the order of `items`; `outputs` are by id of the item. Returns the number of lines.
    """
    rows = []
    for item in items:
        if item.id not in outputs:
            raise UserError(f"no output for item {item.id!r}; finish the run first")
        output = outputs[item.id]
        said = "" if output is None or abstains(output.text) else output.text
        rows.append({"id": item.id, "topic": topic_of(item), "output": said})
    return write_jsonl(path, rows)


def read_output(path: Path, items: Sequence[Item]) -> dict[str, Facts]:
    """Decisions of the tool (`.._factscore_output.json`) by id of the item, items being in the order of the input."""
    values = read_json(path, nan=True)
    decisions = values.get("decisions") if isinstance(values, dict) else None
    if not isinstance(decisions, list):
        raise UserError(f"{path} has no 'decisions'; give the file that factscore.factscorer wrote")
    if len(decisions) != len(items):
        raise UserError(f"{path} has decisions on {len(decisions)} answers, the file {len(items)} items")
    return {item.id: Facts(_facts(one, path, item)) for item, one in zip(items, decisions, strict=True)}


def _facts(decision: Any, path: Path, item: Item) -> tuple[Fact, ...]:
    rows = [] if decision is None else decision
    if not (isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get("atom"), str) for row in rows)):
        raise UserError(f"{path}: the decisions on item {item.id!r} are none: {decision!r:.80}")
    for row in rows:
        if row.get("is_supported") not in (0, 1):  # JSON has true and false, numpy's encoders numbers
            value = row.get("is_supported")
            raise UserError(f"{path}: 'is_supported' of item {item.id!r} is neither true nor false: {value!r:.40}")
    return tuple(Fact(row["atom"], bool(row["is_supported"])) for row in rows)
