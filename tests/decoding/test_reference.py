"""The decoder against the brute-force reference, on random models, passages, settings and failures.

`SELFRAG_REFERENCE=20000` (`make reference`) tries so many examples of each kind.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, currently_in_test_context, event, given, settings
from hypothesis import strategies as st
from random_model import random_model, random_search
from random_policies import policies, seeds, weights
from reference import WATCHED, Reference, Said, Unanswerable
from written import EOS, LIMITS, PROMPTING, Run, run

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Segment, sweep
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Committed, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate
from selfrag.decoding.trace import UNUSABLE, Trace
from selfrag.decoding.tree import Decoder
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.errors import DecodingError, UserError
from selfrag.evaluation.items import USAGE
from selfrag.experiments.studies import rescored
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.weights import Weights

EXAMPLES = int(os.environ.get("SELFRAG_REFERENCE", "120"))
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
half = settings(many, max_examples=int(os.environ.get("SELFRAG_REFERENCE", "60")))
failing = st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.4])
thresholds = st.none() | st.sampled_from([0.0, 0.3, 0.6, 0.9])
OPTIONS = ("A", "AB", "Bob", "C", "Cab", "D")


def chance(*parts: object) -> random.Random:
    return random.Random(zlib.crc32(repr(parts).encode()))


def model(seed: int, failures: float = 0.0) -> Callable[[Generate], Reply | Failed]:
    """A random model of which every request may fail, and that gives any watched id a probability of its own."""
    write = random_model(seed)

    def reply(request: Generate) -> Reply | Failed:
        if failures and chance(seed, "fails", request.prompt_ids).random() < failures:
            return Failed("no memory")
        written = write(request)
        if request.max_tokens > 1 or isinstance(written, Failed) or set(request.watch_ids) <= set(WATCHED):
            return written
        here = zlib.crc32(np.array([seed, *request.prompt_ids], dtype=np.int64).tobytes())
        row = {i: chance(here, i).choice((0.05, 0.1, 0.3, chance(here, i, "free").random())) for i in request.watch_ids}
        return Reply(written.token_ids, {0: row}, written.logprobs)

    return reply


def evidence(seed: int, *, given: bool) -> Sequence[Passage] | None:
    """Passages of the caller for a part of the seeds, repeated and blank ones among them."""
    if not given:
        return None
    found = random_search(seed)("given")
    return [*found, Passage("blank", " \n", "Blank"), *found[:1]]


def agree(answer: Answer, said: Said) -> None:
    """Text, citations and score are those of the reference, or its choice was one of rounding."""
    cited = [(s.text, s.citation) for s in answer.segments]
    best = answer.trace.best
    score = None if best is None else answer.trace.nodes[best].path_score
    if said.close and (answer.text, cited) != (said.text, said.segments):
        note("a choice by rounding")
        assume(False)
    assert (answer.text, cited) == (said.text, said.segments)
    assert (score is None) == (said.score is None)
    if said.score is not None:
        assert score == pytest.approx(said.score, rel=1e-9, abs=1e-9)


def note(happened: str) -> None:
    """Counted by `--hypothesis-show-statistics`."""
    if currently_in_test_context():
        event(happened)


def refused(error: DecodingError, reason: Unanswerable) -> None:
    assert str(error) == str(reason)


class World:
    """One question, decoded by both."""

    def __init__(self, seed: int, *, failures: float = 0.0, given: bool = False, choices: Sequence[str] = ()) -> None:
        self.model, self.find, self.fickle = model(seed, failures), random_search(seed), seed % 3 == 0
        self.evidence, self.choices = evidence(seed, given=given), choices

    def search(self, k: int) -> Callable[[str], Sequence[Passage]]:
        """A third of the retrievers find something else when asked for another number of passages."""
        return lambda query: self.find(f"{query} {k}" if self.fickle else query)

    def decoded(self, policy: Decoding, **serving: int | None) -> Run:
        choices = self.choices or None
        search = self.search(policy.passages)
        given = {"evidence": self.evidence, "policy": policy, "choices": choices}
        return run(self.model, search=search, serving=serving, **given)

    def said(self, policy: Decoding) -> Said:
        """What the reference says.

        Raises:
            Unanswerable: nothing.
        """
        reference = Reference(self.model, self.search(policy.passages), policy, self.evidence)
        return reference.choose("Q", self.choices) if self.choices else reference.decode("Q")

    def compare(self, policy: Decoding) -> Run | None:
        """Both say the same, or refuse for the same reason; None if they refuse."""
        try:
            said = self.said(policy)
        except Unanswerable as reason:
            with pytest.raises(DecodingError) as caught:
                self.decoded(policy)
            refused(caught.value, reason)
            return None
        found = self.decoded(policy)
        agree(found.answer, said)
        return found

    def confirm(self, rescore: Callable[[], Answer], policy: Decoding) -> None:
        """What is called exact is what the reference decodes; rescoring raises only where that refuses."""
        try:
            rescored = rescore()
        except DecodingError as error:
            with pytest.raises(Unanswerable) as caught:
                self.said(policy)
            refused(error, caught.value)
            return
        assert rescored.trace.decoding == policy
        if rescored.exact:
            note("exact")
            agree(rescored, self.said(policy))


@many
@given(seeds, policies, failing, st.booleans())
def test_decode(seed: int, policy: Decoding, failures: float, given: bool) -> None:
    """And what is streamed on the way is the beginning of the answer, segment by segment."""
    found = World(seed, failures=failures, given=given).compare(policy)
    if found is None:
        return
    answer, offsets = found.answer, [(s.text, s.start, s.end, s.citation) for s in found.answer.segments]
    assert [(s.text, s.start, s.end, s.citation) for s in found.commits] == offsets
    assert all(answer.text[start:end] == text for text, start, end, _ in offsets)
    assert not any(token in answer.text for token in TOKENS)
    assert not any(node.status in UNUSABLE for node in answer.trace.path(answer.trace.best))
    assert (answer.usage.requests, answer.usage.searches) == (len(found.engine.requests), len(found.searches.queries))
    assert json.loads(answer.trace.to_json()) == answer.trace.as_dict()
    assert Trace.from_json(answer.trace.to_json()) == answer.trace
    assert json.dumps(answer.as_dict())


@many
@given(seeds, policies, weights, thresholds, failing, st.booleans())
def test_rescore(
    seed: int, policy: Decoding, other: Weights, threshold: float | None, failures: float, given: bool
) -> None:
    """There and back; and a sweep is many rescorings at once."""
    world = World(seed, failures=failures, given=given)
    found = world.compare(policy)
    assume(found is not None)
    assert found is not None
    wanted = replace(policy, weights=other, threshold=policy.threshold if threshold is None else threshold)
    world.confirm(lambda: found.answer.rescore(other, threshold), wanted)
    assert found.answer.rescore(policy.weights, policy.threshold) == found.answer
    agree(found.answer, world.said(policy))
    best, exact = sweep([found.answer, found.answer], [policy.weights, other])
    for column, one in enumerate((policy.weights, other)):
        rescored = found.answer.rescore(one)
        assert [None if node < 0 else node for node in best[:, column]] == [rescored.trace.best] * 2
        assert list(exact[:, column]) == [rescored.exact] * 2
        assert rescored.rescore(policy.weights) == found.answer


@half
@given(seeds, policies, weights)
def test_a_tree_recorded_whole_is_exact_for_every_weight(seed: int, policy: Decoding, other: Weights) -> None:
    whole = replace(policy, beam=10_000, max_segments=min(3, policy.max_segments), passages=min(2, policy.passages))
    world = World(seed)
    answer = world.decoded(whole).answer
    rescored, fresh = answer.rescore(other), world.decoded(replace(whole, weights=other)).answer
    # A merged twin is not written on from: if other weights prefer it, its own continuations are unknown.
    unknown = [n for n in answer.trace.nodes if n.status == "merged" and not n.ended and n.depth < whole.max_segments]
    if not unknown:
        assert rescored.exact
        assert rescored.trace.nodes == fresh.trace.nodes


@half
@given(seeds, policies, weights, thresholds, failing, st.booleans())
def test_closed_sets(
    seed: int, policy: Decoding, other: Weights, threshold: float | None, failures: float, given: bool
) -> None:
    count = chance(seed, "options").randint(2, len(OPTIONS))
    world = World(seed, failures=failures / 4, given=given, choices=OPTIONS[:count])
    found = world.compare(policy)
    assume(found is not None)
    assert found is not None
    wanted = replace(policy, weights=other, threshold=policy.threshold if threshold is None else threshold)
    world.confirm(lambda: found.answer.rescore(other, threshold), wanted)
    assert found.answer.rescore(policy.weights, policy.threshold) == found.answer
    assert found.answer.rescore(other).exact


narrower = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["adaptive", "always", "never"]),
        "threshold": thresholds,
        "retrieve_test": st.sampled_from(["yes_no", "all", "log_ratio"]),
        "no_retrieval_branch": st.booleans(),
        "passages": st.integers(1, 4),
        "beam": st.integers(1, 3),
        "max_segments": st.integers(1, 4),
        "weights": weights,
        "accumulate": st.sampled_from(["mean", "sum", "product"]),
        "forbid": st.sampled_from([{}, {"isrel": "Irrelevant"}]),
    },
)


@half
@given(seeds, policies, st.lists(narrower, min_size=1, max_size=3), failing, st.booleans(), st.booleans())
def test_narrowing(
    seed: int, policy: Decoding, changes: list[dict[str, object]], failures: float, given: bool, chosen: bool
) -> None:
    """A record asked about other settings says nothing, or that it does not know, or what they would have answered."""
    world = World(seed, failures=failures, given=given, choices=OPTIONS[:3] if chosen else ())
    wide = replace(policy, threshold=0.0, no_retrieval_branch=True, passages=4, beam=3)
    found = world.compare(wide)
    assume(found is not None)
    assert found is not None
    narrowed(world, found.answer, [replace(wide, **change) for change in changes])


def narrowed(world: World, answer: Answer, asked: Sequence[Decoding]) -> None:
    usage = {name: getattr(answer.usage, name) for name in USAGE}
    for one, replayed in zip(asked, rescored(answer.trace, usage, asked), strict=True):
        if replayed is None or not replayed.exact:
            continue
        note("exact")
        try:
            said = world.said(one)
        except Unanswerable:
            assert replayed.output is None
            continue
        assert replayed.output is not None
        if said.close and replayed.output.text != said.text.strip():
            note("a choice by rounding")
            continue
        assert replayed.output.text == said.text.strip()
        named = [(text, None if passage is None else passage.id) for text, passage in said.segments]
        assert list(replayed.output.segments) == named


@settings(many, max_examples=max(1, EXAMPLES // 4))
@given(
    st.lists(st.tuples(policies, st.sampled_from(["", "", "", "cancelled", "broken"])), min_size=4, max_size=4),
    seeds,
    failing,
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([UserError, KeyError]),
)
def test_batches(
    asked: list[tuple[Decoding, str]], seed: int, failures: float, batch: int, max_live: int, error: type[Exception]
) -> None:
    """Four questions at once: each is answered as it is alone, whatever becomes of the others."""
    world, find = model(seed, failures), random_search(seed)
    names = [f"Q{i}" for i in range(len(asked))]
    broken = {name for name, (_, fate) in zip(names, asked, strict=True) if fate == "broken"}

    def search(queries: Sequence[str], k: int) -> list[Sequence[Passage]]:
        if any(query.split(" ")[0] in broken for query in queries):
            raise error("no route")
        return [find(query)[:k] for query in queries]

    # A question whose search fails searches at once: what becomes of one that fails later is tested by hand.
    asked = [(replace(policy, mode="always") if fate == "broken" else policy, fate) for policy, fate in asked]

    def decoders() -> Sequence[Decoder]:
        return [decode(name, PROMPTING, policy) for name, (policy, _) in zip(names, asked, strict=True)]

    engine = ScriptedEngine(world, EOS, limits=LIMITS, batch=batch)
    cancelled, moment = set[int](), chance(seed, "when")
    commits: dict[int, list[Segment]] = {i: [] for i in range(len(asked))}
    ends: dict[int, Answer | Exception] = {}
    for happened in drive(decoders(), engine, search, max_live=max_live, cancelled=cancelled):
        index = happened.index
        if isinstance(happened, Committed):
            assert index not in ends
            commits[index].append(happened.segment)
        else:
            assert ends.setdefault(index, happened.answer if isinstance(happened, Answered) else happened.error)
        cancelled |= {i for i, (_, fate) in enumerate(asked) if fate == "cancelled" and moment.random() < 0.3}
    assert sorted(ends) == list(range(len(asked)))
    for index, (policy, fate) in enumerate(asked):
        end = ends[index]
        if str(end) == "cancelled":
            assert fate == "cancelled"
            continue
        failed = None if fate != "broken" else "no route" if error is UserError else f"{error.__name__}: 'no route'"
        compare_alone(names[index], Reference(world, find, policy), end, commits[index], failed)


def compare_alone(
    question: str, reference: Reference, end: Answer | Exception, commits: list[Segment], failed: str | None
) -> None:
    def no_route(query: str) -> Sequence[Passage]:
        raise Unanswerable(f"search failed: {failed}")

    if failed:
        reference.search = no_route
    try:
        said = reference.decode(question)
    except Unanswerable as reason:
        assert isinstance(end, DecodingError)
        refused(end, reason)
        return
    assert isinstance(end, Answer), end
    assert [(s.text, s.start, s.end) for s in commits] == [(s.text, s.start, s.end) for s in end.segments]
    agree(end, said)


def test_a_closed_set_whose_passage_failed_can_be_narrowed() -> None:
    world = World(4620, failures=0.4, choices=OPTIONS[:3])
    wide = Decoding(threshold=0.0, no_retrieval_branch=True, passages=4, beam=3, max_segments=1)
    answer = world.decoded(wide).answer
    (decision,) = answer.trace.decisions
    assert decision.passages[0] not in [node.passage for node in answer.trace.nodes]
    narrowed(world, answer, [replace(wide, threshold=None, no_retrieval_branch=False, passages=1)])


def test_a_kept_search_is_no_given_evidence() -> None:
    for seed in range(0, 30, 3):
        world = World(seed)
        wide = Decoding(mode="always", retrieve_once=True, passages=4, max_segments=2)
        narrowed(world, world.decoded(wide).answer, [replace(wide, passages=1)])
