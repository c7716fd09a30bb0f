"""Candidates of a step: what is asked for each, and what it grows into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retrieval.passage import Passage
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.segments import APPLICABLE, Branch, SegmentReading, read, read_critique
from selfrag.decoding.trace import CUT, UNUSABLE, Node, Status
from selfrag.decoding.tree import Tree, ask
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import RETRIEVE, LabelSet
from selfrag.reflection.requests import Failed, Finish, Generate, Generated, Steps


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A beam entry: where it stands in the tree and the ids that led there."""

    node: int
    prefix: tuple[int, ...]  # prompt and everything written so far, as the model will see it
    boundary: Judgment | None
    texts: tuple[tuple[int, ...], ...] = ()  # text ids of its segments
    evidence: Passage | None = None  # what its last segment used
    spent: int = 0  # new tokens so far
    text: str = ""  # of its last segment


@dataclass(frozen=True, slots=True)
class Candidate:
    """A continuation that was asked for."""

    parent: Hypothesis
    branch: Branch
    passage: Passage | None
    request: Generate
    dropped_tokens: int = 0

    @property
    def site(self) -> str:
        """For its judgments."""
        return f"segment {len(self.parent.texts) + 1}, {f'passage {self.passage.id}' if self.passage else 'no passage'}"

    @property
    def evidence(self) -> str | None:
        """Id of the passage."""
        return None if self.passage is None else self.passage.id


def candidate_of(tree: Tree, parent: Hypothesis, action: Action, passage: Passage | None) -> Candidate:
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
            evidence = tree.evidence(passage)
            ids, dropped = (retrieval, *evidence.ids), evidence.dropped_tokens
    request = Generate(
        prompt_ids=(*parent.prefix, *ids),
        max_tokens=max(1, min(policy.segment_tokens, policy.answer_tokens - parent.spent)),
        stop_ids=vocabulary.retrieve if policy.segment_end == "retrieve" else (),
        watch_ids=vocabulary.watch,
    )
    return Candidate(parent, branch, passage, request, dropped)


def read_candidate(tree: Tree, candidate: Candidate, result: Generated | Failed) -> SegmentReading | None:
    """What a candidate wrote; None if its request failed."""
    if isinstance(result, Failed):
        return None
    cuts = tree.policy.segment_end == "retrieval" and candidate.passage is not None  # it may go on beyond its segment
    return read(
        result,
        tree.prompting.vocabulary,
        branch=candidate.branch,
        site=candidate.site,
        evidence=candidate.evidence,
        likelihood=tree.policy.likelihood,
        forced=tree.policy.forced,
        cut_id=tree.prompting.vocabulary.retrieve[0] if cuts else None,
    )


def unread(tree: Tree, candidate: Candidate, reading: SegmentReading) -> list[LabelSet]:
    """Return what must be read after a segment that was cut: critiques that are due, and Retrieve if it goes on."""
    due = [labels for labels in APPLICABLE[candidate.branch] if labels.role in tree.policy.forced]
    missing = [labels for labels in due if reading.judgments[labels.role] is None]
    if _goes_on(tree.policy, candidate.parent, reading):
        missing.append(RETRIEVE)
    return missing


def _goes_on(policy: Decoding, parent: Hypothesis, reading: SegmentReading) -> bool:
    """Return whether the next segment follows one that its budget cut."""
    tokens_left = policy.answer_tokens - parent.spent - len(reading.ids)
    segments_left = policy.max_segments - len(parent.texts) - 1
    return policy.after_cut == "go_on" and reading.cut and tokens_left > 0 and segments_left > 0


def read_cut(
    tree: Tree, candidates: list[Candidate], readings: list[SegmentReading | None]
) -> Steps[list[SegmentReading | None]]:
    """Return the readings of a step, completed by one token for each segment that was cut before something was due."""
    places: list[int] = []
    requests: list[Generate] = []
    vocabulary = tree.prompting.vocabulary
    for place, (candidate, reading) in enumerate(zip(candidates, readings, strict=True)):
        if reading is not None and unread(tree, candidate, reading):
            places.append(place)
            requests.append(Generate((*candidate.request.prompt_ids, *reading.ids), 1, watch_ids=vocabulary.watch))
    results = yield from ask(tree, requests)
    completed = list(readings)
    for place, result in zip(places, results, strict=True):
        candidate, reading = candidates[place], readings[place]
        if isinstance(result, Failed) or reading is None:
            continue  # stays undefined, and the policy's rule for undefined critiques applies
        for labels in unread(tree, candidate, reading):
            judgment = read_critique(vocabulary, labels, result.watched[0], candidate.site, candidate.evidence)
            if labels is RETRIEVE:
                completed[place] = replace(reading, boundary=judgment, ended=False)
            else:
                reading.judgments[labels.role] = judgment
    return completed


def grown(
    tree: Tree, ended: Sequence[tuple[Candidate, Generated | Failed, int]], depth: int
) -> Steps[list[tuple[Node, Hypothesis | None]]]:
    """The nodes of candidates of one step that have ended, each with its hypothesis if it can be used."""
    readings = [read_candidate(tree, one, result) for one, result, _ in ended]
    readings = yield from read_cut(tree, [one for one, *_ in ended], readings)
    return [grow(tree, *one, reading, depth) for one, reading in zip(ended, readings, strict=True)]


def grow(
    tree: Tree,
    candidate: Candidate,
    result: Generated | Failed,
    number: int,
    reading: SegmentReading | None,
    depth: int,
) -> tuple[Node, Hypothesis | None]:
    """The node `number` of a candidate, and its hypothesis if it can be used."""
    node = Node(number, candidate.parent.node, depth, candidate.branch, candidate.passage)
    node.dropped_tokens = candidate.dropped_tokens
    if isinstance(result, Failed) or reading is None:
        node.status, node.finish = Status.FAILED, result.reason if isinstance(result, Failed) else "failed"
        return node, None
    policy, parent = tree.policy, candidate.parent
    node.text = tree.prompting.text(reading.ids, reading.text_ids)
    node.token_ids, node.text_ids, node.finish = reading.ids, reading.text_ids, str(result.finish)
    if reading.cut and not reading.ended:
        node.finish = CUT
    node.likelihood = reading.likelihood
    node.judgments = {role: found for role, found in reading.judgments.items() if role in policy.own}
    spent = parent.spent + (len(result.token_ids) if reading.ended or reading.cut else len(reading.ids) + 1)
    node.boundary, node.ended = reading.boundary, reading.ended or spent >= policy.answer_tokens
    tree.score(node)
    blank = not node.text.strip()
    if blank and not (result.finish is Finish.EOS and parent.texts):
        node.status = Status.EMPTY
    elif not blank and reading.text_ids in parent.texts:
        node.status = Status.DUPLICATE
    elif not policy.allows(node.judgments, policy.own):
        node.status = Status.FORBIDDEN
    if node.status in UNUSABLE:
        return node, None
    if policy.history == "text":
        prefix = (*parent.prefix, *reading.text_ids)
    else:
        prefix = (*candidate.request.prompt_ids, *reading.ids)
    return node, Hypothesis(
        node=node.id,
        prefix=prefix,
        boundary=reading.boundary,
        texts=(*parent.texts, reading.text_ids),
        evidence=candidate.passage or parent.evidence,
        spent=spent,
        text=node.text.strip(),
    )


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """The candidates of a step."""

    usable: list[Hypothesis]  # hypotheses of those that were written and can be used
    bounded: Mapping[int, Candidate]  # those that were given up, by node


def write(tree: Tree, candidates: list[Candidate], depth: int) -> Steps[WrittenStep]:
    """Write all candidates of a step and record them in the tree."""
    results = yield from ask(tree, [one.request for one in candidates])
    first = len(tree.nodes)
    numbered = [(one, result, first + i) for i, (one, result) in enumerate(zip(candidates, results, strict=True))]
    pairs = yield from grown(tree, numbered, depth)
    pairs.sort(key=lambda pair: pair[0].id)
    tree.nodes += [node for node, _ in pairs]
    return WrittenStep([hypothesis for _, hypothesis in pairs if hypothesis is not None], {})
