"""The decoder against the brute-force reference on random trees.

Models, passages, settings and failures are random; `SELFRAG_REFERENCE=20000` (`make reference`) tries so many examples
of each kind.
"""

import json
import os
import random
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import (
    HealthCheck,
    assume,
    currently_in_test_context,
    event,
    given,
    settings,
)
from hypothesis import strategies as st
from random_model import policies, random_model, random_search, seeds, weights
from reference import WATCHED, Reference, Said, Unanswerable
from scripted import ScriptedEngine, ScriptedReply
from swept import sweep
from written import EOS, LIMITS, PROMPTING, Searches, run

from retrieval.passage import Passage
from selfrag.common.errors import DecodingError
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import UNUSABLE
from selfrag.evaluation.items import USAGE
from selfrag.experiments.studies import rescored
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.requests import Failed
from selfrag.reflection.weights import Weights
from selfrag.runtime import QuestionAnswered, SegmentFinal, drive

EXAMPLES = int(os.environ.get("SELFRAG_REFERENCE", "120"))
many = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
)
half = settings(many, max_examples=int(os.environ.get("SELFRAG_REFERENCE", "60")))
failing = st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.4])
pace = st.integers(1, 5)
thresholds = st.none() | st.sampled_from([0.0, 0.3, 0.6, 0.9])
OPTIONS = ("A", "AB", "Bob", "C", "Cab", "D")


def chance(*parts):
    return random.Random(zlib.crc32(repr(parts).encode()))


def model(seed, failures=0.0):
    """A random model of which every request may fail, and that gives any watched id a probability of its own."""
    write = random_model(seed, noise=0.3)

    def reply(request):
        if failures and chance(seed, "fails", request.prompt_ids).random() < failures:
            return Failed("no memory")
        written = write(request)
        if (
            request.max_tokens > 1
            or isinstance(written, Failed)
            or set(request.watch_ids) <= set(WATCHED)
        ):
            return written
        here = zlib.crc32(
            np.array([seed, *request.prompt_ids], dtype=np.int64).tobytes()
        )
        row = {
            i: chance(here, i).choice(
                (0.05, 0.1, 0.3, chance(here, i, "free").random())
            )
            for i in request.watch_ids
        }
        return ScriptedReply(written.token_ids, {0: row}, written.logprobs)

    return reply


def evidence(seed, *, given):
    """Passages of the caller for a part of the seeds, repeated and blank ones among them."""
    if not given:
        return None
    found = random_search(seed)("given")
    return [*found, Passage("blank", " \n", "Blank"), *found[:1]]


def agree(answer, said):
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


def note(happened):
    """Counted by `--hypothesis-show-statistics`."""
    if currently_in_test_context():
        event(happened)


def outcome(decode):
    """What the reference says, or why it says nothing."""
    try:
        return decode()
    except Unanswerable as reason:
        return str(reason)


class World:
    """One question, decoded by both."""

    def __init__(self, seed, *, failures=0.0, given=False, choices=()):
        self.model = model(seed, failures)
        self.find = random_search(seed)
        self.fickle = seed % 3 == 0
        self.evidence, self.choices = evidence(seed, given=given), choices

    def search(self, k):
        """A third of the retrievers find something else when asked for another number of passages."""
        return lambda query: self.find(f"{query} {k}" if self.fickle else query)

    def decoded(self, policy, **serving):
        choices = self.choices or None
        search = self.search(policy.searched)
        given = {"evidence": self.evidence, "policy": policy, "choices": choices}
        return run(self.model, search=search, serving=serving, **given)

    def said(self, policy):
        """What the reference says, or why it says nothing."""
        reference = Reference(
            self.model, self.search(policy.searched), policy, self.evidence
        )
        return outcome(
            lambda: (
                reference.choose("Q", self.choices)
                if self.choices
                else reference.decode("Q")
            )
        )

    def compare(self, policy):
        """Both say the same, or refuse for the same reason; None if they refuse."""
        said = self.said(policy)
        if isinstance(said, str):
            with pytest.raises(DecodingError, match=f"^{re.escape(said)}$"):
                self.decoded(policy)
            return None
        found = self.decoded(policy)
        agree(found.answer, said)
        return found

    def answered(self, policy):
        """The answer, which the reference gives too; else the example is of no use."""
        found = self.compare(policy)
        assume(found is not None)
        return found.answer

    def rescored(self, policy, weights, threshold):
        """An answer of which every rescoring that is called exact is what the reference decodes.

        Rescoring raises only where that refuses.
        """
        answer = self.answered(policy)
        wanted = replace(
            policy,
            weights=weights,
            threshold=policy.threshold if threshold is None else threshold,
        )
        try:
            rescored = answer.rescore(weights, threshold)
        except DecodingError as error:
            refusal = str(error)
            assert self.said(wanted) == refusal
        else:
            assert rescored.trace.decoding == wanted
            if rescored.exact:
                note("exact")
                said = self.said(wanted)
                assert isinstance(said, Said)
                agree(rescored, said)
        assert answer.rescore(policy.weights, policy.threshold) == answer
        return answer


@many
@given(seeds, policies, failing, st.booleans())
def test_decode(seed, policy, failures, given):
    """And what is streamed on the way is the beginning of the answer, segment by segment."""
    found = World(seed, failures=failures, given=given).compare(policy)
    if found is None:
        return
    answer, offsets = (
        found.answer,
        [(s.text, s.start, s.end, s.citation) for s in found.answer.segments],
    )
    assert [(s.text, s.start, s.end, s.citation) for s in found.commits] == offsets
    assert all(answer.text[start:end] == text for text, start, end, _ in offsets)
    assert not any(token in answer.text for token in TOKENS)
    assert not any(
        node.status in UNUSABLE for node in answer.trace.path(answer.trace.best)
    )
    assert (answer.usage.requests, answer.usage.searches) == (
        len(found.engine.requests),
        len(found.searches.queries),
    )
    assert json.loads(answer.trace.to_json()) == answer.trace.as_dict()

    assert json.dumps(answer.as_dict())


@many
@given(seeds, policies, weights, thresholds, failing, st.booleans())
def test_rescore(seed, policy, other, threshold, failures, given):
    """There and back; and a sweep is many rescorings at once."""
    world = World(seed, failures=failures, given=given)
    answer = world.rescored(policy, other, threshold)
    best, exact = sweep([answer, answer], [policy.weights, other])
    for column, one in enumerate((policy.weights, other)):
        rescored = answer.rescore(one)
        assert [None if node < 0 else node for node in best[:, column]] == [
            rescored.trace.best
        ] * 2
        assert list(exact[:, column]) == [rescored.exact] * 2
        assert rescored.rescore(policy.weights) == answer


def test_where_the_threshold_ends_segments_another_one_is_not_exact():
    policy = Decoding(
        threshold=0.0, passages=1, beam=1, segment_end="retrieval", passage_tokens=5
    )
    answer = World(3295).decoded(policy).answer
    rescored = answer.rescore(policy.weights, 0.3)
    assert not rescored.exact
    assert not rescored.rescore(policy.weights).exact
    assert answer.rescore(Weights(2, 1, 0.5)).exact


@half
@given(seeds, policies, weights)
def test_a_tree_recorded_whole_is_exact_for_every_weight(seed, policy, other):
    whole = replace(
        policy,
        beam=10_000,
        max_segments=min(3, policy.max_segments),
        passages=min(2, policy.passages),
    )
    world = World(seed)
    answer = world.decoded(whole).answer
    rescored = answer.rescore(other)
    fresh = world.decoded(replace(whole, weights=other)).answer
    # A merged twin is not written on from: if other weights prefer it, its own continuations are unknown.
    unknown = [
        n
        for n in answer.trace.nodes
        if n.status == "merged" and not n.ended and n.depth < whole.max_segments
    ]
    if not unknown:
        assert rescored.exact
        assert rescored.trace.nodes == fresh.trace.nodes


@half
@given(seeds, policies, weights, thresholds, failing, st.booleans())
def test_closed_sets(seed, policy, other, threshold, failures, given):
    count = chance(seed, "options").randint(2, len(OPTIONS))
    world = World(seed, failures=failures / 4, given=given, choices=OPTIONS[:count])
    answer = world.rescored(policy, other, threshold)
    assert answer.rescore(other).exact


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
@given(
    seeds,
    policies,
    st.lists(narrower, min_size=1, max_size=3),
    failing,
    st.booleans(),
    st.booleans(),
)
def test_narrowing(seed, policy, changes, failures, given, chosen):
    """A record asked about other settings says nothing, or that it does not know, or what they would have answered."""
    world = World(
        seed, failures=failures, given=given, choices=OPTIONS[:3] if chosen else ()
    )
    wide = replace(policy, threshold=0.0, no_retrieval_branch=True, passages=4, beam=3)
    narrowed(
        world, world.answered(wide), [replace(wide, **change) for change in changes]
    )


def narrowed(world, answer, asked):
    usage = {name: getattr(answer.usage, name) for name in USAGE}
    for one, replayed in zip(asked, rescored(answer.trace, usage, asked), strict=True):
        if replayed is None or not replayed.exact:
            continue
        note("exact")
        said = world.said(one)
        assert (replayed.output is None) == isinstance(said, str)
        if replayed.output is None or isinstance(said, str):
            continue
        if said.close and replayed.output.text != said.text.strip():
            note("a choice by rounding")
            continue
        assert replayed.output.text == said.text.strip()
        named = [
            (text, None if passage is None else passage.id)
            for text, passage in said.segments
        ]
        assert list(replayed.output.segments) == named


@settings(many, max_examples=max(1, EXAMPLES // 4))
@given(st.lists(policies, min_size=4, max_size=4), seeds, failing, pace, pace)
def test_batches(asked, seed, failures, batch, max_live):
    """Four questions at once: each is answered as it is alone, whatever becomes of the others."""
    world, find = model(seed, failures), random_search(seed)
    engine = ScriptedEngine(world, EOS, limits=LIMITS, batch=batch)
    decoders = [decode(f"Q{i}", PROMPTING, policy) for i, policy in enumerate(asked)]
    commits, ends = dict[int, list[Segment]](), dict[int, Answer | Exception]()
    for happened in drive(decoders, engine, Searches(find), max_live=max_live):
        index = happened.index
        if isinstance(happened, SegmentFinal):
            assert index not in ends
            commits.setdefault(index, []).append(happened.segment)
        else:
            assert ends.setdefault(
                index,
                happened.answer
                if isinstance(happened, QuestionAnswered)
                else happened.error,
            )
    assert sorted(ends) == list(range(len(asked)))
    for index, policy in enumerate(asked):
        said = outcome(
            lambda name=f"Q{index}", policy=policy: Reference(
                world, find, policy
            ).decode(name)
        )
        if isinstance(said, str):
            assert (type(ends[index]), str(ends[index])) == (DecodingError, said)
            continue
        assert tuple(commits.get(index, ())) == ends[index].segments
        agree(ends[index], said)


def test_a_closed_set_whose_passage_failed_can_be_narrowed():
    world = World(4620, failures=0.4, choices=OPTIONS[:3])
    wide = Decoding(
        threshold=0.0, no_retrieval_branch=True, passages=4, beam=3, max_segments=1
    )
    answer = world.decoded(wide).answer
    (decision,) = answer.trace.decisions
    assert decision.passages[0] not in [node.passage for node in answer.trace.nodes]
    narrowed(
        world,
        answer,
        [replace(wide, threshold=None, no_retrieval_branch=False, passages=1)],
    )


@pytest.mark.parametrize("seed", [1, 20, 36])
def test_forbidden_passages_that_settings_do_not_read_are_no_reason_to_abstain(seed):
    world = World(seed)
    wide = Decoding(
        threshold=0.0,
        no_retrieval_branch=True,
        passages=4,
        beam=3,
        max_segments=1,
        segment_tokens=4,
        answer_tokens=10,
        forbid={"isrel": {"Irrelevant"}},
    )
    narrowed(world, world.decoded(wide).answer, [replace(wide, threshold=0.9)])


def test_a_kept_search_is_no_given_evidence():
    for seed in range(0, 30, 3):
        world = World(seed)
        wide = Decoding(mode="always", retrieve_once=True, passages=4, max_segments=2)
        narrowed(world, world.decoded(wide).answer, [replace(wide, passages=1)])
