"""Closed sets: score every option after every passage and aggregate with the critique (section 4.1, appendix B.2).

Sans-IO like `beam`. Options are scored by their exact probability along a token trie: one one-token request for each
inner node of the trie and each passage, all in one batch. `string_vote` is the official code's way, for comparison.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, segments_of
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reading import Branch, applicable, judge
from selfrag.decoding.requests import Failed, Generate, Generated, Result
from selfrag.decoding.rescore import replay, settle
from selfrag.decoding.trace import ROOT, UNUSABLE, Decision, Node, Status, Trace
from selfrag.decoding.tree import Batch, Decoder, Found, Tree, ask, find, start_boundary
from selfrag.errors import DecodingError, UserError
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet, Role

Ids: TypeAlias = tuple[int, ...]
Asking = Generator[Batch, list[Result], None]

MOST_WATCHED = 128
"""Watched ids of one request (see `Generate`); where more options part, several requests ask."""


@dataclass(slots=True)
class _Context:
    """A place after which options are scored: the prompt with one passage, or with none."""

    passage: Passage | None
    branch: Branch
    prefix: Ids
    relevance: Judgment | None = None
    failure: str | None = None


def decode_options(
    question: str,
    options: Sequence[str],
    prompting: Prompting,
    policy: Decoding,
    *,
    passages: Sequence[Passage] | None = None,
    per_token: bool = False,
) -> Decoder:
    """Choose one of a closed set of answers.

    For each passage d and option o: p(o|d), normalised over the options, times the critique of o given d (Eq. 4, not
    below 0), summed over the passages; where no critique is above 0, passages count alike. IsSup and IsUse of an option
    are read after it, whatever their weights, so that the trace is complete for other weights.

    Args:
        question: instruction with its input.
        options: at least two distinct texts, as the model would write them.
        prompting: codec, vocabulary and layout of the model.
        policy: settings; those of segments and beams do not matter here.
        passages: evidence given by the caller.
        per_token: compare geometric means per token, so that long options are not at a disadvantage.

    Raises:
        UserError: fewer than two options, or options that are blank or equal.
        DecodingError: nothing could be scored.
    """
    _check(options)
    tree = Tree(question, prompting, policy, None if passages is None else tuple(passages))
    prompt = prompting.prompt(question)
    boundary = yield from start_boundary(tree, prompt)
    action, reason = policy.action(boundary, has_evidence=False)
    evidence = Found(None, ())
    if action == "retrieve":
        (evidence,) = yield from find(tree, [""])
        if not evidence.passages:
            reason = f"{reason}; nothing found"
    tree.decisions.append(Decision(ROOT, action, reason, boundary, evidence.query, evidence.passages))
    contexts = _contexts(tree, prompt, evidence.passages)
    yield from _relevance(tree, contexts)
    usable = [context for context in contexts if context.failure is None]
    encoded = [tuple(prompting.codec.encode(option)) for option in options]
    probabilities = yield from _probabilities(tree, usable, encoded, per_token=per_token)
    usable = [context for context in usable if context.failure is None]
    if not usable:
        raise DecodingError(f"no option could be scored: {contexts[0].failure}")
    for context, row in zip(usable, probabilities, strict=True):
        for option, ids, probability in zip(options, encoded, row, strict=True):
            node = Node(len(tree.nodes), ROOT, 1, context.branch, context.passage, text=option, finish="option")
            node.token_ids, node.text_ids = ids, ids
            node.likelihood, node.ended = probability, True
            node.judgments = {Role.RELEVANCE: context.relevance, Role.SUPPORT: None, Role.UTILITY: None}
            tree.nodes.append(node)
    yield from _critique(tree, usable, ISSUP, ())
    yield from _critique(tree, usable, ISUSE, ISSUP)
    return _answer(tree, tuple(options))


def string_vote(trace: Trace) -> str | None:
    """The official closed-set answer: equal generated strings pool their path scores. None without candidates."""
    votes: dict[str, float] = defaultdict(float)
    for node in trace.nodes:
        if node.depth == 1 and node.status not in UNUSABLE:
            votes[node.text.strip()] += node.path_score
    return max(votes, key=lambda text: votes[text], default=None)


def _check(options: Sequence[str]) -> None:
    if isinstance(options, str) or len(options) < 2:
        raise UserError(f"options={options!r}: give at least two")
    if any(not isinstance(option, str) or not option.strip() for option in options):
        raise UserError("an option is blank or not text")
    if len(set(options)) != len(options):
        raise UserError("two options are equal")


def _contexts(tree: Tree, prompt: Ids, passages: Sequence[Passage]) -> list[_Context]:
    retrieval, no_retrieval, _ = tree.prompting.vocabulary.retrieve
    contexts = []
    for passage in passages:
        evidence = tree.prompting.evidence(passage, tree.policy.passage_tokens)
        contexts.append(_Context(passage, "passage", (*prompt, retrieval, *evidence.ids)))
    if not passages or tree.policy.no_retrieval_branch:
        contexts.append(_Context(None, "none", (*prompt, no_retrieval)))
    return contexts


def _relevance(tree: Tree, contexts: list[_Context]) -> Asking:
    """Let the model judge each passage; the judgment becomes part of the prefix, as in generation."""
    vocabulary = tree.prompting.vocabulary
    judged = [context for context in contexts if context.branch == "passage"]
    allowed = vocabulary.group(ISREL)
    results = yield from ask(tree, [Generate(c.prefix, 1, (), allowed, vocabulary.watch) for c in judged])
    for context, result in zip(judged, results, strict=True):
        if isinstance(result, Failed):
            context.failure = result.reason
            continue
        evidence = context.passage.id if context.passage else None
        context.relevance = judge(vocabulary, ISREL, result.watched[0], f"passage {evidence}", evidence)
        context.prefix = (*context.prefix, allowed[ISREL.index(context.relevance.label)])


def _probabilities(
    tree: Tree, contexts: list[_Context], options: Sequence[Ids], *, per_token: bool
) -> Generator[Batch, list[Result], list[list[float]]]:
    """p(option|context), normalised over the options, for each context that could be served."""
    enders = (tree.prompting.vocabulary.eos_id, *sorted(tree.prompting.vocabulary.ids.values()))
    trie = _trie(options)
    watched = {path: (*following, *(enders if path in options else ())) for path, following in trie.items()}
    steps = [
        (context, path, watch[i : i + MOST_WATCHED])
        for context in contexts
        for path, watch in watched.items()
        for i in range(0, len(watch), MOST_WATCHED)
    ]
    results = yield from ask(tree, [Generate((*c.prefix, *path), 1, watch_ids=watch) for c, path, watch in steps])
    rows: dict[tuple[int, Ids], dict[int, float]] = defaultdict(dict)
    for (context, path, watch), result in zip(steps, results, strict=True):
        if isinstance(result, Failed):
            context.failure = result.reason
            continue
        rows[id(context), path] |= zip(watch, result.watched[0].tolist(), strict=True)
    table = []
    for context in contexts:
        if context.failure is None:
            logprobs = [_option_logprob(rows, id(context), ids, enders) for ids in options]
            if per_token:
                logprobs = [value / len(ids) for value, ids in zip(logprobs, options, strict=True)]
            weights = np.exp(np.array(logprobs) - max(logprobs))
            table.append((weights / weights.sum()).tolist())
    return table


def _trie(options: Sequence[Ids]) -> dict[Ids, Ids]:
    """Inner nodes (paths) of the options' token trie, with the ids that may follow."""
    following: dict[Ids, dict[int, None]] = defaultdict(dict)
    for ids in options:
        for i, token in enumerate(ids):
            following[ids[:i]][token] = None
    return {path: tuple(tokens) for path, tokens in following.items()}


def _option_logprob(rows: dict[tuple[int, Ids], dict[int, float]], context: int, ids: Ids, enders: Ids) -> float:
    """Sum of the option's token log-probabilities; where other options extend it, also that it ends here."""
    total = math.fsum(rows[context, ids[:i]][token] for i, token in enumerate(ids))
    end = rows.get((context, ids))
    if end is not None:
        total += math.log(max(math.fsum(math.exp(end[token]) for token in enders), 1e-38))
    return total


def _critique(tree: Tree, contexts: list[_Context], labels: LabelSet, after: LabelSet | tuple[()]) -> Asking:
    """Judge every option where the group can be judged; `after` is the group written before it."""
    vocabulary = tree.prompting.vocabulary
    prefixes = {c.passage.id if c.passage else None: c.prefix for c in contexts}
    wanted: list[tuple[Node, str | None]] = []
    requests = []
    for node in tree.nodes:
        if labels not in applicable(node.branch):
            continue
        evidence = node.passage.id if node.passage else None
        before = node.judgments[after.role] if isinstance(after, LabelSet) else None
        written = (vocabulary.group(before.labels)[before.labels.index(before.label)],) if before else ()
        requests.append(Generate((*prefixes[evidence], *node.token_ids, *written), 1, watch_ids=vocabulary.watch))
        wanted.append((node, evidence))
    results = yield from ask(tree, requests)
    for (node, evidence), result in zip(wanted, results, strict=True):
        if isinstance(result, Generated):
            site = f"option {node.text!r}, passage {evidence}"
            node.judgments[labels.role] = judge(vocabulary, labels, result.watched[0], site, evidence)


def _answer(tree: Tree, options: tuple[str, ...]) -> Answer:
    for node in tree.nodes:
        if not tree.policy.allows(node.judgments):
            node.status = Status.FORBIDDEN
    recorded = tree.trace(None, options)
    trace = settle(recorded, replay(recorded, [tree.policy.weights]))
    text, segments = segments_of(trace, trace.best)
    return Answer(tree.question, text, segments, tree.usage, trace)
