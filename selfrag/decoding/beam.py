"""The decoder: segment-level beam search with retrieval on demand (Algorithm 1, section 3.3).

`decode` is a generator that yields batches of requests and gets their results; it runs no engine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.policy import Action, AnswerReason, Decoding
from selfrag.decoding.terms import Guardrail, ScoreTerm
from selfrag.decoding.token_writer import DecodingModel, writer_of
from selfrag.decoding.trace import ROOT, Decision, Status, check_generated
from selfrag.decoding.tree import (
    Commit,
    Decoder,
    EvidenceFilterResult,
    RetrievedEvidence,
    Tree,
    find,
    read_boundaries,
    shortlisted,
    write,
)
from selfrag.decoding.writer import Candidate, Hypothesis
from selfrag.prompting import Turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.requests import RequestResult, Steps

if TYPE_CHECKING:
    from selfrag.reflection.judge import Judge


def decode(
    question: str,
    model: DecodingModel,
    policy: Decoding,
    *,
    passages: Sequence[Passage] | None = None,
    query: str | None = None,
    history: Sequence[Turn] = (),
    judges: Sequence[Judge] = (),
) -> Decoder:
    """Answer one question: yields lists of requests, answered by lists of results in order, and `Commit` events.

    Args:
        question: instruction, with its input where there is one.
        model: codec, vocabulary and layout of a model with reflection tokens; or another model that reflects.
        policy: settings.
        passages: evidence given by the caller; every search then returns the first `policy.passages` of these.
        query: search query in place of the question, such as a stand-alone rewrite; the model never sees it.
        history: turns before the question.
        judges: all judges that the policy names; others may be among them.

    Raises:
        UserError: the question is no text, a judge is not there, or nothing could be generated.
    """
    writer = writer_of(model, question, history, policy)
    policy = writer.policy
    tree = Tree(question, writer, policy, None if passages is None else tuple(passages))
    tree.query = query
    tree.history = tuple(history)
    tree.judges = _named(policy, [*writer.judges.values(), *judges])
    live = [writer.start()]
    best: Hypothesis | None = None  # of the pool of finished hypotheses
    committed = 0
    for depth in range(1, policy.max_segments + 1):
        live = yield from read_boundaries(tree, live)
        candidates = yield from _expand(tree, live)
        written = yield from write(tree, candidates, depth)
        usable, staying = yield from _judge(tree, written)
        stuck = _stuck(tree, live, usable)
        finished, live = _select(tree, staying, last=depth == policy.max_segments)
        if policy.pool == "deepest" and staying:
            _finish(tree, stuck, None)
            best, stuck = None, []  # the deepest level alone can hold the answer
        best = _finish(tree, [*stuck, *finished], best)
        alive = live if best is None else [best, *live]
        committed = yield from _commit(tree, alive, committed)
        if not live:
            break
    return _answer(tree, best)


def _stuck(
    tree: Tree, live: Sequence[Hypothesis], usable: Sequence[Hypothesis]
) -> list[Hypothesis]:
    """Return the hypotheses that no usable one follows: their answers end there."""
    followed = {ROOT}
    for hypothesis in usable:
        followed.add(tree.nodes[hypothesis.node].parent)
    return [hypothesis for hypothesis in live if hypothesis.node not in followed]


@dataclass(slots=True)
class _BoundaryPlan:
    """What is done after one hypothesis, as far as it has been decided."""

    hypothesis: Hypothesis
    action: Action
    reason: str  # why, in a few words
    retrieved: RetrievedEvidence = field(default_factory=RetrievedEvidence)
    evidence: EvidenceFilterResult = field(default_factory=EvidenceFilterResult)
    # of guardrails and of the shortlist
    judgments: list[tuple[str, Judgment]] = field(default_factory=list)


def _expand(tree: Tree, live: list[Hypothesis]) -> Steps[list[Candidate]]:
    """Decide at each boundary, search where asked for, and lay out the next segment's candidates."""
    # 1. Decide at each boundary.
    first = live[0].node == ROOT
    plans = []
    for hypothesis in live:
        action, reason = tree.policy.action(
            hypothesis.boundary, has_evidence=hypothesis.evidence is not None
        )
        plans.append(_BoundaryPlan(hypothesis, action, reason))
    decided = (yield from _route(tree)) if first else None
    if decided is not None:
        plans[0].action, plans[0].reason, plans[0].judgments = decided
    # 2. Search, and leave out what the guardrails refuse.
    searching = [plan for plan in plans if plan.action == "retrieve"]
    texts = [plan.hypothesis.text for plan in searching]
    results = yield from find(tree, texts, tree.query)
    places = []
    for plan, result in zip(searching, results, strict=True):
        plan.retrieved = result
        places.append((plan.hypothesis, result.passages))
    shortlists = yield from shortlisted(tree, places)
    searches = [passages for passages, _ in shortlists]
    filtered = yield from _admit(tree, searches, first=first)
    for plan, (_, judged), evidence in zip(
        searching, shortlists, filtered, strict=True
    ):
        plan.evidence = evidence
        plan.judgments += [*judged, *evidence.judged]
    # 3. Record the decisions, and lay out candidates.
    candidates: list[Candidate] = []
    for plan in plans:
        candidates += _lay_out(tree, plan, first=first)
    return candidates


def _lay_out(tree: Tree, plan: _BoundaryPlan, *, first: bool) -> list[Candidate]:
    """Record the decision at a boundary, and return the candidates after it; none where the answer ends there."""
    hypothesis = plan.hypothesis
    action = plan.action
    evidence = plan.evidence
    retrieved = plan.retrieved
    abstaining = tree.policy.without_evidence == "abstain"
    passages = evidence.passages
    reason = "; ".join([plan.reason, *evidence.reasons])
    cause: AnswerReason | None = None
    if evidence.abstained:
        action = "abstain"
        cause = AnswerReason.GUARDRAIL
    elif retrieved.failure is not None:
        reason = f"{reason}; search failed: {retrieved.failure}"
    elif action == "retrieve" and not passages and not evidence.writes:
        cause = AnswerReason.NOTHING_FOUND
        if retrieved.passages:
            cause = AnswerReason.NOTHING_LEFT
        reason = f"{reason}; {cause}"
        if first and abstaining:
            action = "abstain"
    if action == "continue" and hypothesis.evidence is not None:
        passages = (hypothesis.evidence,)
    tree.decisions.append(
        Decision(
            hypothesis.node,
            action,
            reason,
            hypothesis.boundary,
            retrieved.query,
            passages,
            tuple(plan.judgments),
            retrieved.failure,
            cause,
        )
    )
    if retrieved.failure is not None or (
        cause is not None and (action == "abstain" or abstaining)
    ):
        return []
    candidates = [
        tree.writer.candidate(hypothesis, action, passage) for passage in passages
    ]
    if not passages or (action == "retrieve" and tree.policy.no_retrieval_branch):
        candidates.append(tree.writer.candidate(hypothesis, "write", None))
    return candidates


def _route(tree: Tree) -> Steps[tuple[Action, str, list[tuple[str, Judgment]]] | None]:
    """Return whether to search, by the guardrails on the question; None without any."""
    if not tree.judges:
        return None
    from selfrag.decoding.judging import guardrail_decision

    return (yield from guardrail_decision(tree))


def _admit(
    tree: Tree, searches: Sequence[tuple[Passage, ...]], *, first: bool
) -> Steps[list[EvidenceFilterResult]]:
    """Return what the guardrails leave of the passages of each search."""
    if not tree.judges:
        return [EvidenceFilterResult(passages) for passages in searches]
    from selfrag.decoding.judging import filter_evidence

    return (yield from filter_evidence(tree, searches, first=first))


def _judge(
    tree: Tree, written: list[Hypothesis]
) -> Steps[tuple[list[Hypothesis], list[Hypothesis]]]:
    """Return the hypotheses that no judge rejects, and of these the ones that pass the whole cascade."""
    if not tree.judges:
        return written, written
    from selfrag.decoding.judging import judge_candidates

    nodes = [tree.nodes[hypothesis.node] for hypothesis in written]
    staying = {node.id for node in (yield from judge_candidates(tree, nodes))}
    usable, passed = [], []
    for hypothesis, node in zip(written, nodes, strict=True):
        if node.status is not Status.FORBIDDEN:
            usable.append(hypothesis)
            if node.id in staying:
                passed.append(hypothesis)
    return usable, passed


def _select(
    tree: Tree, written: list[Hypothesis], *, last: bool
) -> tuple[list[Hypothesis], list[Hypothesis]]:
    """Return the finished hypotheses, and the unfinished ones among the best `beam`, in tree order.

    Hypotheses with equal text merge into the best one if all of them end or none does. Every other finished hypothesis
    is kept, whatever its rank. Ties go to the earlier candidate in the tree, so every search of one tree agrees.
    """
    distinct: dict[tuple[object, ...], Hypothesis] = {}
    finished = []
    live = []
    for hypothesis in sorted(written, key=lambda h: -tree.nodes[h.node].path_score):
        node = tree.nodes[hypothesis.node]
        over = node.ended or last
        key: tuple[object, ...] = (hypothesis.texts, over)
        if tree.policy.pool == "deepest":
            key = (*key, hypothesis.node)  # equal ones stay apart
        if distinct.setdefault(key, hypothesis) is not hypothesis:
            node.status = Status.MERGED
        elif over:
            finished.append(hypothesis)
        elif len(distinct) <= tree.policy.beam:
            node.status = Status.KEPT
            live.append(hypothesis)
    return finished, sorted(live, key=lambda h: h.node)


def _finish(
    tree: Tree, finished: list[Hypothesis], best: Hypothesis | None
) -> Hypothesis | None:
    """Add hypotheses to the pool of finished ones, of which only the best so far can become the answer."""
    for hypothesis in finished:
        tree.nodes[hypothesis.node].status = Status.FINISHED
    pool = finished if best is None else [best, *finished]
    return max(
        pool, key=lambda h: (tree.nodes[h.node].path_score, -h.node), default=None
    )


def _commit(
    tree: Tree, alive: list[Hypothesis], committed: int
) -> Generator[Commit, list[RequestResult], int]:
    """Announce the segments that all hypotheses share, after the first `committed`; return how many are shared."""
    trace = tree.trace(None)
    paths = [trace.path(hypothesis.node) for hypothesis in alive]
    shared = []
    for nodes in zip(*paths, strict=False):
        if any(node is not nodes[0] for node in nodes):
            break
        shared.append(nodes[0].id)
    fresh = set(shared[committed:])
    if fresh:
        for segment in segments_of(trace, shared[-1])[1]:
            if segment.node in fresh:
                yield Commit(segment)
    return max(committed, len(shared))


def _named(policy: Decoding, judges: Sequence[Judge]) -> dict[str, Judge]:
    """Return the judges that the policy asks for, all of which must be there and able to judge what is written."""
    parts: tuple[ScoreTerm | Guardrail, ...] = (*policy.judges, *policy.guardrails)
    if not parts:
        return {}
    from selfrag.reflection.judge import Scope, check_taking_part

    known = {judge.name: judge for judge in judges}
    used: dict[str, Judge] = {}
    for part in parts:
        name = part.judge
        if name not in known:
            raise UserError(
                f"no judge {name!r}; there is {', '.join(sorted(known)) or 'none'}: pass judges=[..]"
            )
        check_taking_part(name, known[name].labels, known[name].scope)
        used[name] = known[name]
    for guardrail in policy.guardrails:
        judge = known[guardrail.judge]
        of_text = judge.scope in (Scope.SEGMENT, Scope.ANSWER)
        if of_text and judge.role in (Role.SUPPORT, Role.CITATION):
            raise UserError(
                f"{judge.name} judges what is written, and a guardrail decides before anything is"
            )
    return used


def _answer(tree: Tree, best: Hypothesis | None) -> Answer:
    """Return the best finished hypothesis, or an answer without segments if no candidate was usable."""
    check_generated(tree.nodes)
    trace = tree.trace(None if best is None else best.node)
    text, segments = segments_of(trace, trace.best)
    answer = Answer(tree.question, text, segments, Usage(), trace, note=trace.note)
    if tree.writer.whole_answers:
        return replace(answer, exact=False, whole_answers=True)
    return answer
