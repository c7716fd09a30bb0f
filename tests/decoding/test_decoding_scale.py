"""Time grows as the input does: many options, much evidence, long texts, and the trace of it all as JSON."""

import pytest
from scripted import ScriptedReply
from written import EOS, LIMITS, passages, run

from retrieval.passage import Passage
from selfrag.decoding.trace import Trace
from selfrag.engines.base import EngineLimits

WIDE = EngineLimits(max_model_len=10_000_000, vocab_size=LIMITS.vocab_size)


def stopping(request):
    """A model that ends at once; every id that is watched or allowed is as probable."""
    first = request.allowed_ids[0] if request.allowed_ids else EOS
    row = dict.fromkeys(request.watch_ids, 1 / max(1, len(request.watch_ids))) | {
        first: 0.5
    }
    return ScriptedReply((first, EOS)[: 1 + (first != EOS)], {0: row})


def chosen(size):
    return run(
        stopping,
        "d1",
        choices=[f"{n * 7919 % 1_000_003:07d}" for n in range(size)],
        limits=WIDE,
    )


def judged(size):
    evidence = passages(*(f"d{n}" for n in range(size)))
    return run(stopping, evidence=evidence, mode="always", passages=size, limits=WIDE)


def asked(size):
    return run(stopping, "d1", question="why " * size, limits=WIDE)


def read(size):
    long = (Passage("d1", "word " * size),)
    return run(
        stopping,
        evidence=long,
        mode="always",
        passage_tokens=10**9,
        limits=EngineLimits(10**9, WIDE.vocab_size),
    )


def written(size):
    return Trace.from_json(judged(size).answer.trace.to_json())


@pytest.mark.parametrize(
    "work, size",
    [(chosen, 500), (judged, 1000), (asked, 62_500), (read, 200_000), (written, 200)],
)
def test_time_grows_as_the_input_does(growth, work, size):
    assert growth(int, work, size) < 8  # of 4 for linear and 16 for quadratic work


@pytest.mark.slow
def test_a_hundred_thousand_options():
    assert len(chosen(100_000).answer.trace.nodes) >= 100_000
