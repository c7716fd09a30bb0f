"""The growing tree of one question and the steps every decoder shares: ask, read the first boundary, find evidence.

Sans-IO: everything here yields batches of requests and gets their results. Knows no search strategy.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Segment, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reading import judge
from selfrag.decoding.requests import Failed, Generate, Generated, Request, Result, Retrieve, Retrieved
from selfrag.decoding.trace import Decision, Node, Trace
from selfrag.errors import DecodingError
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import RETRIEVE


@dataclass(frozen=True, slots=True)
class Commit:
    """A segment that every hypothesis still alive begins with: it will not change any more."""

    segment: Segment


Batch: TypeAlias = list[Request]
Decoder: TypeAlias = Generator[Batch | Commit, list[Result], Answer]
"""Yields batches, answered by their results in the same order, and `Commit` events; returns the answer."""


@dataclass(slots=True)
class Tree:
    """The growing tree of one question."""

    question: str
    prompting: Prompting
    policy: Decoding
    given: tuple[Passage, ...] | None
    nodes: list[Node] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    fixed: tuple[Passage, ...] | None = None  # first search's passages, for retrieve_once

    def trace(self, best: int | None, options: tuple[str, ...] = ()) -> Trace:
        """What has been recorded so far."""
        return Trace(self.question, self.policy, tuple(self.nodes), tuple(self.decisions), best, options)


class Counting(Protocol):
    """What asking needs of a decoder's state."""

    usage: Usage


class Seeking(Counting, Protocol):
    """What finding evidence needs of a decoder's state; the attributes are those of `Tree`."""

    question: str
    policy: Decoding
    given: tuple[Passage, ...] | None
    fixed: tuple[Passage, ...] | None


def ask(tree: Counting, requests: list[Generate]) -> Generator[Batch, list[Result], list[Generated | Failed]]:
    """One batch of generations, counted."""
    if not requests:
        return []
    results = yield list(requests)
    found = [result for result in results if isinstance(result, Generated | Failed)]
    done = [(q, r) for q, r in zip(requests, found, strict=True) if isinstance(r, Generated)]
    tree.usage = replace(
        tree.usage,
        requests=tree.usage.requests + len(requests),
        prompt_tokens=tree.usage.prompt_tokens + sum(len(q.prompt_ids) for q, _ in done),
        cached_tokens=tree.usage.cached_tokens + sum(r.cached_tokens for _, r in done),
        generated_tokens=tree.usage.generated_tokens + sum(len(r.token_ids) for _, r in done),
    )
    return found


def start_boundary(tree: Tree, prompt: tuple[int, ...]) -> Generator[Batch, list[Result], Judgment | None]:
    """The Retrieve distribution before anything is written: one token, of which only the watched row matters.

    None in the modes that do not ask the model.

    Raises:
        DecodingError: the engine refused the prompt, for instance because it is too long.
    """
    if tree.policy.mode != "adaptive":
        return None
    vocabulary = tree.prompting.vocabulary
    request = Generate(prompt, 1, watch_ids=vocabulary.watch)
    (result,) = yield from ask(tree, [request])
    if isinstance(result, Failed):
        raise DecodingError(f"the model could not read the question: {result.reason}")
    return judge(vocabulary, RETRIEVE, result.watched[0], "start")


@dataclass(frozen=True, slots=True)
class Found:
    """Evidence for the next segment, and the query that found it (None if nothing was searched)."""

    query: str | None
    passages: tuple[Passage, ...]


def find(tree: Seeking, last_segments: Sequence[str]) -> Generator[Batch, list[Result], list[Found]]:
    """Passages for each segment to come: given by the caller, kept from the first search, or searched for now.

    Args:
        tree: the question.
        last_segments: for each wanted search the text written last, empty at the start of the answer; the query is the
            question and this text, or the question alone with `retrieve_once`. Equal queries are searched once.

    Raises:
        DecodingError: the retriever failed.
    """
    policy = tree.policy
    ready = tree.given if tree.given is not None else tree.fixed
    if ready is not None:
        return [Found(None, distinct(ready)[: policy.passages])] * len(last_segments)
    if not last_segments:
        return []
    once = policy.retrieve_once
    queries = [tree.question if once or not text else f"{tree.question} {text}" for text in last_segments]
    unique = list(dict.fromkeys(queries))
    results = yield [Retrieve(query, policy.passages) for query in unique]
    tree.usage = replace(tree.usage, searches=tree.usage.searches + len(unique))
    found: dict[str, Found] = {}
    for query, result in zip(unique, results, strict=True):
        if not isinstance(result, Retrieved):
            reason = result.reason if isinstance(result, Failed) else f"got {type(result).__name__}"
            raise DecodingError(f"search failed: {reason}")
        found[query] = Found(query, distinct(result.passages)[: policy.passages])
    if once:
        tree.fixed = found[tree.question].passages
    return [found[query] for query in queries]


def distinct(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """Passages without repeated ids or repeated texts, order kept; blank ones are left out."""
    kept: dict[str, Passage] = {}
    texts: set[tuple[str, str]] = set()
    for passage in passages:
        key = (passage.title, passage.text)
        if passage.text.strip() and passage.id not in kept and key not in texts:
            kept[passage.id] = passage
            texts.add(key)
    return tuple(kept.values())
