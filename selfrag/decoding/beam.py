"""The decoder: segment-level beam search with retrieval on demand (Algorithm 1, section 3.3).

`decode` is a generator that yields batches of requests and gets their results; it runs no engine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, segments_of
from selfrag.decoding.cascade import Admitted, admit, judge_candidates, route
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.reflectors import REPLACEABLE, Critic, Guardrail, ScoreTerm
from selfrag.decoding.requests import Failed, Finish, Generate, Generated, Result
from selfrag.decoding.segments import Branch, Reading, applicable, judge, read
from selfrag.decoding.trace import ROOT, UNUSABLE, Decision, Node, Status, check_generated
from selfrag.decoding.tree import Batch, Commit, Decoder, Found, Tree, ask, find, start_boundary
from selfrag.errors import UserError
from selfrag.prompting import Prompting, Turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, LabelSet, Role


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """A beam entry: where it stands in the tree and the ids that led there."""

    node: int
    prefix: tuple[int, ...]  # prompt and everything written so far, as the model will see it
    boundary: Judgment | None
    texts: tuple[tuple[int, ...], ...] = ()  # text ids of its segments
    evidence: Passage | None = None  # what its last segment used
    spent: int = 0  # new tokens so far
    text: str = ""  # of its last segment


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A continuation that was asked for."""

    parent: _Hypothesis
    branch: Branch
    passage: Passage | None
    request: Generate
    dropped_tokens: int = 0


def decode(
    question: str,
    prompting: Prompting,
    policy: Decoding,
    *,
    passages: Sequence[Passage] | None = None,
    query: str | None = None,
    history: Sequence[Turn] = (),
    critics: Sequence[Critic] = (),
) -> Decoder:
    """Answer one question.

    Args:
        question: instruction, with its input where there is one.
        prompting: codec, vocabulary and layout of the model.
        policy: settings.
        passages: evidence given by the caller; every search then returns the first `policy.passages` of these.
        query: search query in place of the question, such as a stand-alone rewrite; the model never sees it.
        history: turns before the question.
        critics: all reflectors that the policy names; others may be among them.

    Yields:
        Lists of requests, answered by lists of results in the same order, and `Commit` events.

    Returns:
        The answer with its trace.

    Raises:
        UserError: the question is empty or not text, or the policy names a reflector that is not there.
        DecodingError: nothing could be generated; the message says why.
    """
    tree = Tree(question, prompting, policy, None if passages is None else tuple(passages))
    tree.query, tree.history, tree.critics = query, tuple(history), _named(policy, critics)
    prompt = prompting.prompt(question, history=history)
    boundary = yield from start_boundary(tree, prompt)
    live = [_Hypothesis(ROOT, prompt, boundary)]
    best: _Hypothesis | None = None  # of the pool of finished hypotheses
    committed = 0
    for depth in range(1, policy.max_segments + 1):
        candidates = yield from _expand(tree, live)
        results = yield from ask(tree, [candidate.request for candidate in candidates])
        readings = [_read(tree, c, r) for c, r in zip(candidates, results, strict=True)]
        yield from _force(tree, candidates, readings)
        grown = [_grow(tree, c, r, d, depth) for c, r, d in zip(candidates, results, readings, strict=True)]
        usable = [hypothesis for hypothesis in grown if hypothesis is not None]
        usable, staying = yield from _judge(tree, usable)
        parents = {tree.nodes[hypothesis.node].parent for hypothesis in usable}
        stuck = [h for h in live if h.node != ROOT and h.node not in parents]  # nothing follows: the answer ends there
        finished, live = _select(tree, staying, last=depth == policy.max_segments)
        best = _finish(tree, [*stuck, *finished], best)
        committed = yield from _commit(tree, [*live] if best is None else [best, *live], committed)
        if not live:
            break
    return _answer(tree, best)


def _expand(tree: Tree, live: list[_Hypothesis]) -> Generator[Batch, list[Result], list[_Candidate]]:
    """Decide at each boundary, search where asked for, and lay out the next segment's candidates."""
    plans: list[tuple[_Hypothesis, Action, str]] = [
        (h, *tree.policy.action(h.boundary, has_evidence=h.evidence is not None)) for h in live
    ]
    first, asked = live[0].node == ROOT, {}
    routed = (yield from route(tree)) if first else None
    if routed is not None:
        plans, asked[ROOT] = [(live[0], *routed[:2])], routed[2]
    wanted = [h for h, action, _ in plans if action == "retrieve"]
    results = yield from find(tree, [h.text for h in wanted], tree.query)
    admitted = yield from admit(tree, [result.passages for result in results], first=first)
    found = {h.node: (result, one) for h, result, one in zip(wanted, results, admitted, strict=True)}
    candidates: list[_Candidate] = []
    for hypothesis, action, reason in plans:
        result, evidence = found.get(hypothesis.node, (Found(None, ()), Admitted(())))
        reason = "; ".join([reason, *evidence.reasons])
        if evidence.abstained:
            action = "abstain"
        elif result.failure is not None:
            reason = f"{reason}; search failed: {result.failure}"
        elif action == "retrieve" and not evidence.passages and not evidence.reasons:
            reason = f"{reason}; nothing found"
        if action == "continue" and hypothesis.evidence is not None:
            evidence = Admitted((hypothesis.evidence,))
        gates = (*asked.get(hypothesis.node, ()), *evidence.judged)
        at = hypothesis.node, action, reason, hypothesis.boundary
        tree.decisions.append(Decision(*at, result.query, evidence.passages, gates, result.failure))
        if action == "abstain" or result.failure is not None:
            continue
        candidates += [_candidate(tree, hypothesis, action, passage) for passage in evidence.passages]
        if not evidence.passages or (action == "retrieve" and tree.policy.no_retrieval_branch):
            candidates.append(_candidate(tree, hypothesis, "write", None))
    return candidates


def _candidate(tree: Tree, parent: _Hypothesis, action: Action, passage: Passage | None) -> _Candidate:
    """The request for one continuation: prefix, marker and evidence in the training layout."""
    policy, vocabulary = tree.policy, tree.prompting.vocabulary
    retrieval, no_retrieval, keep = vocabulary.retrieve
    branch: Branch = "none" if passage is None else "continue" if action == "continue" else "passage"
    ids: tuple[int, ...] = (no_retrieval,)
    dropped = 0
    if passage is not None:
        if branch == "continue" and policy.history == "text+passages":
            ids = (keep,)  # the passage already stands in the prefix
        else:
            evidence = tree.prompting.evidence(passage, policy.passage_tokens)
            ids, dropped = (retrieval, *evidence.ids), evidence.dropped_tokens
    request = Generate(
        prompt_ids=(*parent.prefix, *ids),
        max_tokens=max(1, min(policy.segment_tokens, policy.answer_tokens - parent.spent)),
        stop_ids=vocabulary.retrieve if policy.segment_end == "retrieve" else (),
        watch_ids=vocabulary.watch,
    )
    return _Candidate(parent, branch, passage, request, dropped)


def _site(candidate: _Candidate) -> str:
    source = "no passage" if candidate.passage is None else f"passage {candidate.passage.id}"
    return f"segment {len(candidate.parent.texts) + 1}, {source}"


def _evidence(candidate: _Candidate) -> str | None:
    return None if candidate.passage is None else candidate.passage.id


def _forced_roles(tree: Tree) -> frozenset[Role]:
    """Roles of the model's own critiques that must be defined."""
    if tree.policy.undefined == "force":
        return frozenset(labels.role for labels in CRITIQUES) - tree.policy.replaced.keys()
    always = {Role.RELEVANCE} if tree.policy.undefined == "zero" else set()
    return (tree.policy.constrained | always) - tree.policy.replaced.keys()


def _read(tree: Tree, candidate: _Candidate, result: Generated | Failed) -> Reading | None:
    if isinstance(result, Failed):
        return None
    return read(
        result,
        tree.prompting.vocabulary,
        branch=candidate.branch,
        site=_site(candidate),
        evidence=_evidence(candidate),
        likelihood=tree.policy.likelihood,
        forced=_forced_roles(tree),
        cut_id=tree.prompting.vocabulary.retrieve[0] if _cuts(tree, candidate) else None,
    )


def _cuts(tree: Tree, candidate: _Candidate) -> bool:
    """Whether a completion may continue beyond its segment."""
    return tree.policy.segment_end == "retrieval" and candidate.passage is not None


def _force(
    tree: Tree, candidates: list[_Candidate], readings: list[Reading | None]
) -> Generator[Batch, list[Result], None]:
    """Requests one token for each critique that is missing because the segment was cut."""
    forced = _forced_roles(tree)
    cut: list[tuple[_Candidate, Reading, list[LabelSet]]] = []
    for candidate, reading in zip(candidates, readings, strict=True):
        if reading is None:
            continue
        due = [labels for labels in applicable(candidate.branch) if labels.role in forced]
        unread = [labels for labels in due if reading.judgments[labels.role] is None]
        if unread:
            cut.append((candidate, reading, unread))
    vocabulary = tree.prompting.vocabulary
    requests = [Generate((*c.request.prompt_ids, *reading.ids), 1, watch_ids=vocabulary.watch) for c, reading, _ in cut]
    results = yield from ask(tree, requests)
    for (candidate, reading, unread), result in zip(cut, results, strict=True):
        if isinstance(result, Failed):
            continue  # stays undefined, and the policy's rule for undefined critiques applies
        for labels in unread:
            judgment = judge(vocabulary, labels, result.watched[0], _site(candidate), _evidence(candidate))
            reading.judgments[labels.role] = judgment


def _grow(
    tree: Tree, candidate: _Candidate, result: Generated | Failed, reading: Reading | None, depth: int
) -> _Hypothesis | None:
    """Record a candidate in the tree; return its hypothesis if it can be used."""
    node = Node(len(tree.nodes), candidate.parent.node, depth, candidate.branch, candidate.passage)
    node.dropped_tokens = candidate.dropped_tokens
    tree.nodes.append(node)
    if isinstance(result, Failed) or reading is None:
        node.status, node.finish = Status.FAILED, result.reason if isinstance(result, Failed) else "failed"
        return None
    policy, parent = tree.policy, candidate.parent
    node.text = tree.prompting.codec.decode(reading.text_ids)
    node.token_ids, node.text_ids, node.finish = reading.ids, reading.text_ids, str(result.finish)
    node.likelihood = reading.likelihood
    node.judgments = {role: found for role, found in reading.judgments.items() if role not in policy.replaced}
    spent = parent.spent + (len(result.token_ids) if reading.ended else len(reading.ids) + 1)
    node.boundary, node.ended = reading.boundary, reading.ended or spent >= policy.answer_tokens
    tree.score(node)
    blank = not node.text.strip()
    if blank and not (result.finish is Finish.EOS and parent.texts):
        node.status = Status.EMPTY
    elif not blank and reading.text_ids in parent.texts:
        node.status = Status.DUPLICATE
    elif not policy.allows(node.judgments, REPLACEABLE - policy.replaced.keys()):
        node.status = Status.FORBIDDEN
    if node.status in UNUSABLE:
        return None
    if policy.history == "text":
        prefix = (*parent.prefix, *reading.text_ids)
    else:
        prefix = (*candidate.request.prompt_ids, *reading.ids)
    return _Hypothesis(
        node=node.id,
        prefix=prefix,
        boundary=reading.boundary,
        texts=(*parent.texts, reading.text_ids),
        evidence=candidate.passage or parent.evidence,
        spent=spent,
        text=node.text.strip(),
    )


def _judge(
    tree: Tree, grown: list[_Hypothesis]
) -> Generator[Batch, list[Result], tuple[list[_Hypothesis], list[_Hypothesis]]]:
    """Returns the hypotheses that no reflector rejects, and of these the ones that pass the whole cascade."""
    nodes = yield from judge_candidates(tree, [tree.nodes[hypothesis.node] for hypothesis in grown])
    staying = {node.id for node in nodes}
    usable = [h for h in grown if tree.nodes[h.node].status is not Status.FORBIDDEN]
    return usable, [h for h in usable if h.node in staying]


def _select(tree: Tree, grown: list[_Hypothesis], *, last: bool) -> tuple[list[_Hypothesis], list[_Hypothesis]]:
    """Returns the finished hypotheses, and the unfinished ones among the best `beam`, in tree order.

    Hypotheses with equal text merge into the best one if all of them end or none does. Every other finished hypothesis
    is kept, whatever its rank. Ties go to the earlier candidate in the tree, so every search of one tree agrees.
    """
    distinct: dict[tuple[object, bool], _Hypothesis] = {}
    finished, live = [], []
    for hypothesis in sorted(grown, key=lambda h: -tree.nodes[h.node].path_score):
        node = tree.nodes[hypothesis.node]
        over = node.ended or last
        if distinct.setdefault((hypothesis.texts, over), hypothesis) is not hypothesis:
            node.status = Status.MERGED
        elif over:
            finished.append(hypothesis)
        elif len(distinct) <= tree.policy.beam:
            node.status = Status.KEPT
            live.append(hypothesis)
    return finished, sorted(live, key=lambda h: h.node)


def _finish(tree: Tree, finished: list[_Hypothesis], best: _Hypothesis | None) -> _Hypothesis | None:
    """Add hypotheses to the pool of finished ones, of which only the best so far can become the answer."""
    for hypothesis in finished:
        tree.nodes[hypothesis.node].status = Status.FINISHED
    pool = finished if best is None else [best, *finished]
    return max(pool, key=lambda h: (tree.nodes[h.node].path_score, -h.node), default=None)


def _commit(tree: Tree, alive: list[_Hypothesis], committed: int) -> Generator[Commit, list[Result], int]:
    """Announce the segments that all hypotheses share, after the first `committed`; return how many are shared."""
    trace = tree.trace(None)
    paths = [[node.id for node in trace.path(h.node)] for h in alive]
    shared = [step[0] for step in takewhile(lambda step: len(set(step)) == 1, zip(*paths, strict=False))]
    fresh = set(shared[committed:])
    if fresh:
        for segment in segments_of(trace, shared[-1])[1]:
            if segment.node in fresh:
                yield Commit(segment)
    return max(committed, len(shared))


def _named(policy: Decoding, critics: Sequence[Critic]) -> dict[str, Critic]:
    """The critics that the policy asks for.

    Raises:
        UserError: one is not there.
    """
    known = {critic.name: critic for critic in critics}
    parts: tuple[ScoreTerm | Guardrail, ...] = (*policy.reflectors, *policy.gates)
    names = dict.fromkeys(part.reflector for part in parts)
    if missing := next((name for name in names if name not in known), None):
        raise UserError(
            f"no reflector {missing!r}; there is {', '.join(sorted(known)) or 'none'}: pass reflectors=[..]"
        )
    return {name: known[name] for name in names}


def _answer(tree: Tree, best: _Hypothesis | None) -> Answer:
    """The best finished hypothesis, or an empty answer if no candidate was usable.

    Raises:
        DecodingError: every request failed.
    """
    check_generated(tree.nodes)
    trace = tree.trace(None if best is None else best.node)
    text, segments = segments_of(trace, trace.best)
    return Answer(tree.question, text, segments, tree.usage, trace)
