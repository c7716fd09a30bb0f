"""Multiple choice: every option scored after every passage, aggregated with the critique (4.1, B.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from retrieval.passage import Passage
from selfrag.common.checks import check_choice
from selfrag.common.errors import UserError, generation_error
from selfrag.common.untrusted import replace_surrogates
from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.option_scoring import MOST_WATCHED, Length, normalised
from selfrag.decoding.policy import AnswerReason, Decoding
from selfrag.decoding.rescore import replay, settle
from selfrag.decoding.token_writer import DecodingModel, writer_of
from selfrag.decoding.trace import (
    ROOT,
    UNUSABLE,
    Decision,
    Node,
    Status,
    check_generated,
)
from selfrag.decoding.tree import (
    Decoder,
    RetrievedEvidence,
    Tree,
    find,
    read_boundaries,
    shortlisted,
    write,
)
from selfrag.decoding.writer import Candidate, Hypothesis, ScoredOptions
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.requests import Failed, Steps


def decode_options(
    question: str,
    options: Sequence[str],
    model: DecodingModel,
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
    question = replace_surrogates(question)
    options = [replace_surrogates(option) for option in options]
    writer = writer_of(model, question, (), policy)
    tree = Tree(
        question, writer, writer.policy, None if passages is None else tuple(passages)
    )
    tree.judges = writer.judges
    (start,) = yield from read_boundaries(tree, [writer.start()])
    boundary = start.boundary
    action, reason = policy.action(boundary, has_evidence=False)
    evidence = RetrievedEvidence(None, ())
    judged = tuple[tuple[str, Judgment], ...]()
    cause: AnswerReason | None = None
    if action == "retrieve":
        (evidence,) = yield from find(tree, [""])
        ((passages, judged),) = yield from shortlisted(
            tree, [(start, evidence.passages)]
        )
        evidence = replace(evidence, passages=passages)
        if not evidence.passages:
            cause = AnswerReason.NOTHING_FOUND
            reason = f"{reason}; {cause}"
    abstains = cause is not None and policy.without_evidence == "abstain"
    if abstains:
        action = "abstain"
    at = ROOT, action, reason, boundary
    tree.decisions.append(
        Decision(*at, evidence.query, evidence.passages, judged, cause=cause)
    )
    if abstains:
        return _answer(tree, tuple(options))
    if policy.aggregate == "vote":
        return (yield from _vote(tree, start, evidence.passages))
    candidates = _candidates(tree, start, evidence.passages)
    tables = yield from writer.choose(candidates, options, most_watched)
    scored = [
        (c, table)
        for c, table in zip(candidates, tables, strict=True)
        if isinstance(table, ScoredOptions)
    ]
    if not scored:
        reasons = [table.reason for table in tables if isinstance(table, Failed)]
        raise generation_error(f"no option could be scored: {reasons[0]}")
    for candidate, table in scored:
        probabilities = normalised(table.logprobs, options, table.ids, length)
        for number, option in enumerate(options):
            node = Node(
                len(tree.nodes),
                ROOT,
                1,
                candidate.branch,
                candidate.passage,
                text=option,
                finish="option",
            )
            node.token_ids = table.ids[number]
            node.text_ids = table.ids[number]
            node.likelihood = probabilities[number]
            node.ended = True
            node.judgments = table.judgments[number]
            tree.nodes.append(node)
    return _answer(tree, tuple(options))


def _candidates(
    tree: Tree, start: Hypothesis, passages: Sequence[Passage]
) -> list[Candidate]:
    """Return a candidate for each passage, and one without any where there is none or the policy asks for it."""
    candidates = [
        tree.writer.candidate(start, "retrieve", passage) for passage in passages
    ]
    if not passages or tree.policy.no_retrieval_branch:
        candidates.append(tree.writer.candidate(start, "write", None))
    return candidates


def _vote(tree: Tree, start: Hypothesis, passages: Sequence[Passage]) -> Steps[Answer]:
    """Return the text with the highest sum of scores, of one segment written after each passage."""
    written = yield from write(tree, _candidates(tree, start, passages), 1)
    if tree.judges:
        from selfrag.decoding.judging import judge_candidates

        yield from judge_candidates(
            tree, [tree.nodes[hypothesis.node] for hypothesis in written]
        )
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


def _answer(tree: Tree, options: tuple[str, ...]) -> Answer:
    for node in tree.nodes:
        if node.status not in UNUSABLE and not tree.policy.allows(node.judgments):
            node.status = Status.FORBIDDEN
    recorded = tree.trace(None, options)
    trace = settle(recorded, replay(recorded, [tree.policy.weights]))
    text, segments = segments_of(trace, trace.best)
    return Answer(tree.question, text, segments, Usage(), trace)
