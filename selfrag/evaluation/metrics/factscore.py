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
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from retrieval.passage import Retriever
from retrieval.sentences import sentences
from selfrag.common.errors import UserError, count_of
from selfrag.common.jsonl import write_jsonl
from selfrag.common.reading import read_json
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
        """Return whether every fact was found and judged."""
        return not self.failed and all(
            fact.supported is not None for fact in self.facts
        )


def penalty(facts: int) -> float:
    """Return the factor for an answer of so many facts, at least one."""
    if facts > GAMMA:
        return 1.0
    return math.exp(1 - GAMMA / facts)


def parts(checked: Facts | None) -> Mapping[str, Part | None]:
    """Return what an answer adds to each figure of `NAMES`.

    An abstention, or a failed item (None), counts in `responds` only, and an answer with a missing verdict nowhere.
    """
    checked = checked or Facts()
    if not checked.decided:
        return dict.fromkeys(NAMES)
    count = len(checked.facts)
    if not count:
        return {**dict.fromkeys(NAMES), "responds": (0.0, 1.0)}
    share = sum(bool(fact.supported) for fact in checked.facts) / count
    return {
        "factscore": (share * penalty(count), 1.0),
        "factscore_unpenalised": (share, 1.0),
        "facts": (float(count), 1.0),
        "responds": (1.0, 1.0),
    }


# Finding and checking facts


class Splitter(Protocol):
    """Finds the facts of texts."""

    @property
    def name(self) -> str:
        """Return what reports call it."""

    def identity(self) -> Mapping[str, Any]:
        """Return everything that decides what it finds, as plain values."""

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Return the facts of each text, none for an empty one; None where they could not be found."""


@dataclass(frozen=True)
class SentenceSplitter:
    """Every sentence is a fact: no model is needed, and a sentence with one wrong detail is wrong as a whole."""

    name: str = "sentences"

    def identity(self) -> Mapping[str, Any]:
        """Return the kind alone."""
        return {"kind": "sentences"}

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Return the sentences of each text."""
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
        """Return kind, model and prompt."""
        return {"kind": "prompted", **self.about, "task": TASK}

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Return the facts of all sentences of each text; None where a request failed or a reply had no list."""
        lines = list(map(_sentences, texts))
        results = iter(
            self.executor.run(list(map(_request, chain.from_iterable(lines))))
        )
        facts: list[tuple[str, ...] | None] = []
        for sentences_of_text in lines:
            replies = islice(results, len(sentences_of_text))
            of_sentences = []
            for reply in replies:
                text = ""
                if isinstance(reply, Completion):
                    text = reply.text
                of_sentences.append(read_facts(text))
            if all(of_sentences):
                facts.append(tuple(chain.from_iterable(of_sentences)))
            else:
                facts.append(None)
        return facts


def load_splitter(spec: str) -> Splitter:
    """Return the splitter of a name: `sentences`, or a model to prompt, `MODEL` or `MODEL@URL` as for `chat_model`."""
    if spec == "sentences":
        return SentenceSplitter()
    executor, name, about = chat_model(spec)
    return PromptedSplitter(executor, f"facts by {name}", about)


def read_facts(text: str) -> tuple[str, ...]:
    """Return the lines of a reply that are items of a list; other lines are talk around it."""
    matches = map(_BULLET.fullmatch, map(str.rstrip, text.splitlines()))
    return tuple(match[1] for match in matches if match)


def _request(sentence: str) -> ModelRequest:
    message = Message("user", f"{TASK}\n\nSentence: {one_line(sentence)}")
    return ModelRequest(
        JudgeInput((Message("assistant", sentence),)),
        ChatPrompt((message,)),
        max_tokens=LONGEST,
    )


def _sentences(text: str) -> list[str]:
    unmarked = without_marks(text)
    return [unmarked[start:end] for start, end in sentences(unmarked, rules)]


def check(
    texts: Sequence[str],
    topics: Sequence[str],
    splitter: Splitter,
    retriever: Retriever,
    judge: Remembered,
) -> list[Facts]:
    """Find the facts of each text and decide on each of them.

    A fact is supported if the passages that are found for topic and fact entail it. The official tool searches the
    page of the topic only; here the index decides what there is to find. An empty text states no facts. Every distinct
    pair is asked once, all in one call.
    """
    split = splitter.split(texts)
    # 1. what each distinct fact is looked up in
    known = {}
    for topic, facts in zip(topics, split, strict=True):
        for fact in facts or ():
            known[topic, fact] = ""
    queries = list(dict.fromkeys(f"{topic} {fact}" for topic, fact in known))
    hits = (
        dict(zip(queries, retriever(queries, PASSAGES), strict=True)) if queries else {}
    )
    for topic, fact in known:
        known[topic, fact] = "\n\n".join(map(premise, hits[f"{topic} {fact}"]))
    # 2. verdicts; a fact that nothing is found for has no support
    pairs = list(
        dict.fromkeys((text, fact) for (_, fact), text in known.items() if text)
    )
    verdicts: dict[tuple[str, str], bool | None] = {}
    if pairs:
        verdicts.update(zip(pairs, judge.entails(pairs), strict=True))
    # 3. by answer
    checked = []
    for topic, facts in zip(topics, split, strict=True):
        if facts is None:
            checked.append(Facts(failed=f"{splitter.name} found no list of facts"))
            continue
        judged = [
            Fact(fact, verdicts.get((known[topic, fact], fact), False))
            for fact in facts
        ]
        checked.append(Facts(tuple(judged)))
    return checked


# The official tool's files


def topic_of(item: Item) -> str:
    """Return the name of the person or thing that an item is about."""
    if not item.topic.strip():
        raise UserError(
            f"item {item.id!r} has no 'topic'; FactScore looks facts up under the name of the topic"
        )
    return item.topic


def write_input(
    path: Path, items: Sequence[Item], outputs: Mapping[str, Output | None]
) -> int:
    """Write the tool's input, a line an item: topic and answer; an abstention and a failed item are empty answers.

    Decisions will be in the order of `items`; `outputs` are by id of the item. Returns the number of lines.
    """
    rows = []
    for item in items:
        if item.id not in outputs:
            raise UserError(f"no output for item {item.id!r}; finish the run first")
        output = outputs[item.id]
        biography = ""
        if output is not None and not output.declined:
            biography = output.text
        rows.append({"id": item.id, "topic": topic_of(item), "output": biography})
    return write_jsonl(path, rows)


def read_output(path: Path, items: Sequence[Item]) -> dict[str, Facts]:
    """Return the decisions of the tool (`.._factscore_output.json`) by id; items are in the order of the input."""
    values = read_json(path, nan=True)
    decisions = None
    if isinstance(values, dict):
        decisions = values.get("decisions")
    if not isinstance(decisions, list):
        raise UserError(
            f"{path} has no 'decisions'; give the file that factscore.factscorer wrote"
        )
    if len(decisions) != len(items):
        raise UserError(
            f"{path} has decisions on {count_of(len(decisions), 'answers')}, the file {count_of(len(items), 'items')}"
        )
    return {
        item.id: Facts(_read_facts(decision, path, item))
        for item, decision in zip(items, decisions, strict=True)
    }


def _read_facts(decision: Any, path: Path, item: Item) -> tuple[Fact, ...]:
    facts = []
    rows = decision
    if decision is None:
        rows = []
    elif not isinstance(decision, list):
        rows = [decision]
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("atom"), str):
            raise UserError(
                f"{path}: the decisions on item {item.id!r} are none: {decision!r:.80}"
            )
        supported = row.get("is_supported")
        if supported not in (0, 1):  # JSON has true and false, numpy's encoders numbers
            raise UserError(
                f"{path}: 'is_supported' of item {item.id!r} is neither true nor false: {supported!r:.40}"
            )
        facts.append(Fact(row["atom"], bool(supported)))
    return tuple(facts)
