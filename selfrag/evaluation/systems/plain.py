"""Decoders of systems without reflection tokens: write one answer, or score a closed set, after one prompt. Sans-IO.

They keep the state and the trace of the reflective decoders, so that whatever reads an `Answer` reads theirs. Nothing
here criticises: an answer has no judgments, and `citation` of its segment is the only passage in the prompt, if one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.options import Ids as Ids
from selfrag.decoding.options import Length, normalised, option_logprobs, option_requests
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Finish, Generate, Generated, Result
from selfrag.decoding.segments import geometric_mean
from selfrag.decoding.trace import ROOT, Decision, Node, Status, Trace
from selfrag.decoding.tree import Batch, Decoder, ask
from selfrag.errors import DecodingError
from selfrag.tokenization import TextCodec


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads before it answers.

    Attributes:
        question: as asked, for the answer.
        ids: the whole prompt.
        passages: the evidence in it, in order.
        dropped_tokens: tokens of passages that were cut.
    """

    question: str
    ids: Ids
    passages: tuple[Passage, ...] = ()
    dropped_tokens: int = 0


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

    Args:
        prompt: what the model reads.
        codec: safe tokenisation.
        options: as the model would write them.
        eos_id: ends an option that another one goes on from.
        length: what is taken out of the probabilities, see `normalised`.

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
