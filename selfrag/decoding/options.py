"""Multiple choice: every option scored after every passage, aggregated with the critique (4.1, B.2)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeAlias, get_args

import numpy as np

from retrieval.passage import Passage
from selfrag.common.checks import check_choice
from selfrag.common.errors import UserError, generation_error
from selfrag.common.untrusted import replace_surrogates
from selfrag.decoding.answer import Answer, segments_of
from selfrag.decoding.candidates import Hypothesis, candidate_of, write
from selfrag.decoding.policy import AnswerReason, Decoding
from selfrag.decoding.rescore import replay, settle
from selfrag.decoding.segments import APPLICABLE, Branch, read_critique
from selfrag.decoding.trace import ROOT, UNUSABLE, Decision, Node, Status, check_generated
from selfrag.decoding.tree import Decoder, RetrievedEvidence, Tree, ask, find, shortlisted, start_boundary
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet, Role
from selfrag.reflection.requests import Failed, Generate, Generated, Steps

Length: TypeAlias = Literal["none", "tokens", "characters"]
"""What an option's log-probability is divided by; `characters` ranks as `acc_norm` of lm-evaluation-harness does."""

MOST_WATCHED = 19
"""Watched ids of one request that every engine serves, a `vllm serve` as it is started by default among them."""


def option_requests(
    prefix: Ids,
    options: Sequence[Ids],
    enders: Ids = (),
    *,
    adapter: str | None = None,
    most_watched: int = MOST_WATCHED,
) -> list[Generate]:
    """The requests whose results `option_logprobs` reads.

    `enders` can end an option; they are asked for only where another option continues. A branching larger than
    `most_watched` ids takes several requests.
    """
    requests, whole = [], set(options)
    for path, following in _trie(options).items():
        watch = (*following, *(enders if path in whole else ()))
        requests += [
            Generate((*prefix, *path), 1, watch_ids=watch[i : i + most_watched], adapter=adapter)
            for i in range(0, len(watch), most_watched)
        ]
    return requests


def option_logprobs(
    requests: Sequence[Generate], results: Sequence[Generated], prefix: Ids, options: Sequence[Ids], enders: Ids = ()
) -> list[float]:
    """Natural log-probability of each option after `prefix`.

    If another option extends an option, this includes the probability that the shorter one ends.
    """
    rows: dict[Ids, dict[int, float]] = defaultdict(dict)
    for request, result in zip(requests, results, strict=True):
        path = request.prompt_ids[len(prefix) :]
        rows[path] |= zip(request.watch_ids, result.watched[0].tolist(), strict=True)
    return [_logprob(rows, ids, enders) for ids in options]


def normalised(
    logprobs: Sequence[float], texts: Sequence[str], options: Sequence[Ids], length: Length = "none"
) -> list[float]:
    """Probabilities over the options, with length normalisation if `length` asks for it.

    Normalisation ranks the options by log-probability per token or character, times their average length. Without that
    factor the values would lie so close together that any critique outweighs them. With it, options of equal length
    keep their probabilities.
    """
    values = np.array(logprobs)
    if length != "none":
        # A text of no token is possible: the codec leaves out what the tokenizer does not know.
        lengths = np.array([max(1, len(one)) for one in (options if length == "tokens" else texts)])
        values = values / lengths * lengths.mean()
    weights = np.exp(values - values.max())
    probabilities: list[float] = (weights / weights.sum()).tolist()
    return probabilities


def _trie(options: Sequence[Ids]) -> dict[Ids, Ids]:
    """Inner nodes (paths) of the options' token trie, with the ids that may follow."""
    following: dict[Ids, dict[int, None]] = defaultdict(dict)
    for ids in options:
        for i, token in enumerate(ids):
            following[ids[:i]][token] = None
    return {path: tuple(tokens) for path, tokens in following.items()}


def _logprob(rows: dict[Ids, dict[int, float]], ids: Ids, enders: Ids) -> float:
    total = math.fsum(rows[ids[:i]][token] for i, token in enumerate(ids))
    end = rows.get(ids)
    if end is not None:
        total += math.log(max(math.fsum(math.exp(end[token]) for token in enders), 1e-38))
    return total


Ids: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class _Context:
    """A place after which options are scored: the prompt with one passage, or with none."""

    passage: Passage | None
    branch: Branch
    prefix: Ids
    relevance: Judgment | None = None
    failure: str | None = None


@dataclass(slots=True)
class _Scored:
    """An option after a context."""

    node: Node
    written: Ids  # what stands before its next critique


def decode_options(
    question: str,
    options: Sequence[str],
    prompting: Prompting,
    policy: Decoding,
    *,
    passages: Sequence[Passage] | None = None,
    length: Length = "none",
    most_watched: int = MOST_WATCHED,
) -> Decoder:
    """Choose one of several answers.

    For each passage d and option o: p(o|d), normalised over the options, times the critique of o given d (Eq. 4, not
    below 0), summed over the passages; where no critique is above 0, passages count alike. With
    `policy.aggregate="sum"` the critique is added to p(o|d), as in Eq. 3. IsSup and IsUse of an option
    are read after it, whatever their weights, so that the trace is complete for other weights. Settings of segments and
    beams do not matter. Where nothing was found, `policy.without_evidence` decides as in `decode`.

    With `policy.aggregate="vote"` the answer is what the model wrote: one segment after each passage, and the scores of
    equal texts are added. It need not be one of the options.

    Raises:
        UserError: options that are no options, an unknown `length`, a policy with other judges, or nothing to score.
    """
    _check(options, length)
    if policy.judges or policy.guardrails:
        raise UserError(
            "other judges and guardrails need written answers, not multiple choice; leave them out of choose()"
        )
    question, options = replace_surrogates(question), [replace_surrogates(option) for option in options]
    tree = Tree(question, prompting, policy, None if passages is None else tuple(passages))
    prompt = prompting.prompt(question)
    boundary = yield from start_boundary(tree, prompt)
    action, reason = policy.action(boundary, has_evidence=False)
    evidence, judged = RetrievedEvidence(None, ()), tuple[tuple[str, Judgment], ...]()
    cause: AnswerReason | None = None
    if action == "retrieve":
        (evidence,) = yield from find(tree, [""])
        ((passages, judged),) = yield from shortlisted(tree, [(prompt, evidence.passages)])
        evidence = replace(evidence, passages=passages)
        if not evidence.passages:
            cause = AnswerReason.NOTHING_FOUND
            reason = f"{reason}; {cause}"
    abstains = cause is not None and policy.without_evidence == "abstain"
    if abstains:
        action = "abstain"
    at = ROOT, action, reason, boundary
    tree.decisions.append(Decision(*at, evidence.query, evidence.passages, judged, cause=cause))
    if abstains:
        return _answer(tree, tuple(options))
    if policy.aggregate == "vote":
        return (yield from _vote(tree, Hypothesis(ROOT, prompt, boundary), evidence.passages))
    contexts = _contexts(tree, prompt, evidence.passages)
    yield from _relevance(tree, contexts)
    usable = [context for context in contexts if context.failure is None]
    encoded = [tuple(prompting.codec.encode(option)) for option in options]
    probabilities = yield from _probabilities(tree, usable, options, encoded, length, most_watched)
    usable = [context for context in usable if context.failure is None]
    if not usable:
        raise generation_error(f"no option could be scored: {contexts[0].failure}")
    scored: list[_Scored] = []
    for context, row in zip(usable, probabilities, strict=True):
        for option, ids, probability in zip(options, encoded, row, strict=True):
            node = Node(len(tree.nodes), ROOT, 1, context.branch, context.passage, text=option, finish="option")
            node.token_ids, node.text_ids = ids, ids
            node.likelihood, node.ended = probability, True
            node.judgments = {Role.RELEVANCE: context.relevance, Role.SUPPORT: None, Role.UTILITY: None}
            tree.nodes.append(node)
            scored.append(_Scored(node, (*context.prefix, *ids)))
    for labels in (ISSUP, ISUSE):
        yield from _critique(tree, scored, labels)
    return _answer(tree, tuple(options))


def _vote(tree: Tree, start: Hypothesis, passages: Sequence[Passage]) -> Steps[Answer]:
    """Return the text with the highest sum of scores, of one segment written after each passage."""
    candidates = [candidate_of(tree, start, "retrieve", passage) for passage in passages]
    if not passages or tree.policy.no_retrieval_branch:
        candidates.append(candidate_of(tree, start, "write", None))
    yield from write(tree, candidates, 1)
    check_generated(tree.nodes)
    for node in tree.nodes:
        node.text = node.text.strip()
    texts = dict.fromkeys(node.text for node in tree.nodes)
    return _answer(tree, tuple(texts))


def _check(options: Sequence[str], length: str) -> None:
    if isinstance(options, str) or len(options) < 2:
        raise UserError(f"options={options!r:.80}: give at least two")
    if any(not isinstance(option, str) or not option.strip() for option in options):
        raise UserError("an option is blank or not text")
    if len(set(options)) != len(options):
        raise UserError("two options are equal")
    check_choice("length", length, get_args(Length))


def _contexts(tree: Tree, prompt: Ids, passages: Sequence[Passage]) -> list[_Context]:
    retrieval, no_retrieval, _ = tree.prompting.vocabulary.retrieve
    contexts = [_Context(passage, "passage", (*prompt, retrieval, *tree.evidence(passage).ids)) for passage in passages]
    if not passages or tree.policy.no_retrieval_branch:
        contexts.append(_Context(None, "none", (*prompt, no_retrieval)))
    return contexts


def _relevance(tree: Tree, contexts: list[_Context]) -> Steps[None]:
    """Let the model judge each passage; the judgment becomes part of the prefix, as in generation."""
    vocabulary = tree.prompting.vocabulary
    judged = [context for context in contexts if context.branch == "passage"]
    results = yield from ask(tree, [Generate(c.prefix, 1, watch_ids=vocabulary.watch) for c in judged])
    for context, result in zip(judged, results, strict=True):
        if isinstance(result, Failed):
            context.failure = result.reason
            continue
        evidence = context.passage.id if context.passage else None
        context.relevance = read_critique(vocabulary, ISREL, result.watched[0], f"passage {evidence}", evidence)
        context.prefix = (*context.prefix, vocabulary.group(ISREL)[ISREL.index(context.relevance.label)])


def _probabilities(
    tree: Tree,
    contexts: list[_Context],
    texts: Sequence[str],
    options: Sequence[Ids],
    length: Length,
    most_watched: int,
) -> Steps[list[list[float]]]:
    """p(option|context), normalised over the options, for each context that could be served."""
    enders = (tree.prompting.vocabulary.eos_id, *sorted(tree.prompting.vocabulary.ids.values()))
    plans = [option_requests(context.prefix, options, enders, most_watched=most_watched) for context in contexts]
    results = iter((yield from ask(tree, [request for plan in plans for request in plan])))
    table = []
    for context, plan in zip(contexts, plans, strict=True):
        found = list(islice(results, len(plan)))
        served = [result for result in found if isinstance(result, Generated)]
        if len(served) < len(plan):
            context.failure = next(result.reason for result in found if isinstance(result, Failed))
            continue
        logprobs = option_logprobs(plan, served, context.prefix, options, enders)
        table.append(normalised(logprobs, texts, options, length))
    return table


def _critique(tree: Tree, scored: Sequence[_Scored], labels: LabelSet) -> Steps[None]:
    """Judge every option where the group can be judged; the next group is read after the label."""
    vocabulary = tree.prompting.vocabulary
    due = [one for one in scored if labels in APPLICABLE[one.node.branch]]
    results = yield from ask(tree, [Generate(one.written, 1, watch_ids=vocabulary.watch) for one in due])
    for one, result in zip(due, results, strict=True):
        if isinstance(result, Generated):
            evidence = one.node.passage.id if one.node.passage else None
            site = f"option {one.node.text!r}, passage {evidence}"
            judgment = read_critique(vocabulary, labels, result.watched[0], site, evidence)
            one.node.judgments[labels.role] = judgment
            one.written = (*one.written, vocabulary.group(labels)[labels.index(judgment.label)])


def _answer(tree: Tree, options: tuple[str, ...]) -> Answer:
    for node in tree.nodes:
        if node.status not in UNUSABLE and not tree.policy.allows(node.judgments):
            node.status = Status.FORBIDDEN
    recorded = tree.trace(None, options)
    trace = settle(recorded, replay(recorded, [tree.policy.weights]))
    text, segments = segments_of(trace, trace.best)
    return Answer(tree.question, text, segments, tree.usage, trace)
