"""Baselines without reflection tokens: an untuned chat model, and models fine-tuned on the same pairs. Sans-IO."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.options import Ids, Length, normalised, option_logprobs, option_requests
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Finish, Generate, Generated, Result
from selfrag.decoding.segments import geometric_mean
from selfrag.decoding.trace import ROOT, Decision, Node, Status, Trace
from selfrag.decoding.tree import Batch, Decoder, ask
from selfrag.errors import DecodingError
from selfrag.evaluation.items import Item
from selfrag.evaluation.multiple_choice import choices
from selfrag.evaluation.task import Task
from selfrag.prompting import Chat, Prompting, passage_ids
from selfrag.tokenization import TextCodec


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads before it answers."""

    question: str  # as asked, for the answer
    ids: Ids  # the whole prompt
    passages: tuple[Passage, ...] = ()  # the evidence in it, in order
    dropped_tokens: int = 0  # tokens of passages that were cut


@dataclass(slots=True)
class _State:
    usage: Usage = field(default_factory=Usage)


def write(prompt: Prompt, codec: TextCodec, max_tokens: int) -> Decoder:
    """One greedy answer.

    Raises:
        DecodingError: the engine refused the prompt.
    """
    state = _State()
    (result,) = yield from ask(state, [Generate(prompt.ids, max_tokens)])
    if isinstance(result, Failed):
        raise DecodingError(f"no answer could be generated: {result.reason}")
    ids = result.token_ids[:-1] if result.finish is Finish.EOS else result.token_ids
    node = _node(prompt, 0, codec.decode(ids), ids)
    node.finish, node.likelihood = str(result.finish), geometric_mean(result.token_logprobs)
    node.score = node.path_score = node.likelihood
    return _answer(prompt, [node], 0, state.usage, max_tokens)


def choose(prompt: Prompt, codec: TextCodec, options: Sequence[str], eos_id: int, length: Length = "none") -> Decoder:
    """The most probable of `options` after the prompt, by exact probability.

    `options` are as the model would write them, `eos_id` ends one that another one continues from, and `length` is
    what is taken out of the probabilities, see `normalised`.

    Raises:
        DecodingError: the engine refused the prompt.
    """
    state = _State()
    encoded = [tuple(codec.encode(option)) for option in options]
    requests = option_requests(prompt.ids, encoded, (eos_id,))
    results = yield from _all(state, requests)
    logprobs = option_logprobs(requests, results, prompt.ids, encoded, (eos_id,))
    nodes: list[Node] = []
    probabilities = normalised(logprobs, options, encoded, length)
    for option, ids, probability in zip(options, encoded, probabilities, strict=True):
        node = _node(prompt, len(nodes), option, ids)
        node.finish, node.likelihood, node.score, node.path_score = "option", probability, probability, probability
        node.status = Status.PRUNED
        nodes.append(node)
    best = max(range(len(nodes)), key=lambda i: nodes[i].score)
    nodes[best].status = Status.FINISHED
    return _answer(prompt, nodes, best, state.usage, 1, tuple(options))


def _all(state: _State, requests: list[Generate]) -> Generator[Batch, list[Result], list[Generated]]:
    results = yield from ask(state, requests)
    failed = next((result for result in results if isinstance(result, Failed)), None)
    if failed is not None:
        raise DecodingError(f"no option could be scored: {failed.reason}")
    return [result for result in results if isinstance(result, Generated)]


def _node(prompt: Prompt, number: int, text: str, ids: Ids) -> Node:
    one = prompt.passages[0] if len(prompt.passages) == 1 else None
    node = Node(number, ROOT, 1, "none" if one is None else "passage", one, text, ids, ids)
    node.ended, node.status, node.dropped_tokens = True, Status.FINISHED, prompt.dropped_tokens
    return node


def _answer(
    prompt: Prompt, nodes: list[Node], best: int, usage: Usage, max_tokens: int, options: tuple[str, ...] = ()
) -> Answer:
    reads = bool(prompt.passages)
    decision = Decision(ROOT, "retrieve" if reads else "write", "as the system does", passages=prompt.passages)
    policy = Decoding(
        mode="always" if reads else "never",
        passages=max(1, len(prompt.passages)),
        max_segments=1,
        segment_tokens=max_tokens,
        beam=1,
    )
    trace = Trace(prompt.question, policy, tuple(nodes), (decision,), best, options)
    text, segments = segments_of(trace, best)
    return Answer(prompt.question, text, segments, usage, trace)


PASSAGES = "Use these passages to answer the question.\n\n"
QUESTION = "Question: "


UNTUNED = {"base": 0, "rag": 1, "rag-1": 1, "rag-5": 5}
"""Passages that an untuned baseline reads, by its name; `rag` has the number of a published task's protocol."""


@dataclass(frozen=True, slots=True)
class Untuned:
    """Baseline (i): base model, the first `passages` of the item in the prompt."""

    codec: TextCodec  # safe tokenisation
    chat: Chat  # the model's chat template
    eos_id: int  # ends an answer
    passages: int  # how many; 0 asks the model alone
    passage_tokens: int = 256  # a passage is cut here
    cites_all: bool = True

    def decoder(self, item: Item, task: Task) -> Decoder:
        """One greedy answer, or the most probable option where the task has them scored."""
        found = choices(item) if item.options else None
        # A question without its options says what is wanted; a list of them would turn it into one with options.
        hint = "" if item.cloze else task.hint.format(choices=", ".join(found.surfaces if found else ()))
        prompt = self.prompt(item, hint, bare=not task.hint)
        if found and (item.cloze or not task.written):
            return (yield from choose(prompt, self.codec, found.surfaces, self.eos_id, found.length))
        return (yield from write(prompt, self.codec, task.new_tokens))

    def prompt(self, item: Item, hint: str = "", *, bare: bool = False) -> Prompt:
        """Numbered passages, the question, the hint if there is one; `bare` adds no word to passages and question."""
        used = item.passages[: self.passages]
        ids = [*self.chat.before]
        dropped = 0
        if used and not bare:
            ids += self.codec.encode(PASSAGES)
        for number, passage in enumerate(used, 1):
            body, cut = passage_ids(self.codec, passage, self.passage_tokens)
            ids += [*self.codec.encode(f"[{number}] "), *body, *self.codec.encode("\n\n")]
            dropped += cut
        lead = QUESTION if used and not bare else ""
        told = f"\n\n{hint}" if hint else ""
        ids += [*self.codec.encode(f"{lead}{item.instruction}{told}"), *self.chat.after]
        return Prompt(item.instruction, tuple(ids), used, dropped)

    def as_dict(self) -> dict[str, Any]:
        """Settings and the texts of the prompt."""
        return {
            "kind": "untuned",
            "passages": self.passages,
            "passage_tokens": self.passage_tokens,
            "chat": self.chat.source,
            "prompt": [PASSAGES, QUESTION],
        }


@dataclass(frozen=True, slots=True)
class FineTuned:
    """A fine-tuned model that never criticises."""

    prompting: Prompting  # codec, vocabulary (for the markers around a passage) and layout of the model
    passages: int  # how many of the item's passages stand before the answer; 0 for (ii), 1 for (iii)
    passage_tokens: int = 256  # a passage is cut here
    cites_all: bool = True

    def decoder(self, item: Item, task: Task) -> Decoder:
        """One greedy answer, or the most probable option where the task has them scored."""
        prompt = self.prompt(item)
        if item.options and (item.cloze or not task.written):
            found, eos_id = choices(item), self.prompting.vocabulary.eos_id
            return (yield from choose(prompt, self.prompting.codec, found.surfaces, eos_id, found.length))
        return (yield from write(prompt, self.prompting.codec, task.new_tokens))

    def prompt(self, item: Item) -> Prompt:
        """The prompt of the training rows and the evidence between its markers."""
        used = item.passages[: self.passages]
        evidence = [self.prompting.evidence(passage, self.passage_tokens) for passage in used]
        ids = (*self.prompting.prompt(item.instruction), *(i for part in evidence for i in part.ids))
        return Prompt(item.instruction, ids, used, sum(part.dropped_tokens for part in evidence))

    def as_dict(self) -> dict[str, Any]:
        """Settings."""
        return {
            "kind": "finetuned",
            "passages": self.passages,
            "passage_tokens": self.passage_tokens,
            "layout": self.prompting.layout.name,
        }
