"""Measure what decoders and driver cost beside the engine: `bench_overhead.py [--live 1,64,1024] [--requests N]`.

A scripted engine answers each request as soon as it is asked. Its own time is measured apart and taken off. Each number
of live questions is measured with the full search and with `branch_and_bound`. Processor time, so that other work on
the machine matters less.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from command import command
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.decoding.tree import Decoder
from selfrag.engines.base import Limits
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.prompting import Prompting
from speed.long_segments import EOS, FIRST, RELEVANCE, VOCABULARY, Characters, model, search


@dataclass
class Timed(ScriptedEngine):
    """Knows how long it has worked."""

    seconds: float = 0.0

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        """As of any engine."""
        start = time.thread_time()
        try:
            return ScriptedEngine.step(self)
        finally:
            self.seconds += time.thread_time() - start


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--live", default="1,64,1024", help="questions at a time, default %(default)s")
    parser.add_argument("--questions", type=int, default=1024, help="default %(default)s")
    given = parser.parse_args()
    print("| search | live questions | requests | us a request | requests/s | share of a GPU at 300 requests/s | MiB |")
    print("|---|---|---|---|---|---|---|")
    for on in (False, True):
        for live in map(int, given.live.split(",")):
            questions = max(64, min(given.questions, live * 16))
            requests, seconds = _measured(Decoding(mode="always", max_segments=3, branch_and_bound=on), questions, live)
            each, peak = seconds / requests, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            name = "branch and bound" if on else "full"
            print(
                f"| {name} | {live} | {requests:,} | {each * 1e6:.0f} | {1 / each:,.0f} | {300 * each:.1%}"
                f" | {peak:.0f} |",
                flush=True,
            )
    return 0


def _measured(policy: Decoding, questions: int, live: int) -> tuple[int, float]:
    """Requests, and processor seconds beside the engine's."""
    write = cache(model(RELEVANCE["most are relevant"]))

    def reply(request: Generate) -> Reply:
        return write(replace(request, report=False))

    engine = Timed(reply, EOS, Limits(max_model_len=8192, vocab_size=FIRST + 0x110000))
    prompting = Prompting(Characters(), VOCABULARY)

    def decoders() -> Iterator[Decoder]:
        for number in range(questions):
            yield decode(f"Q{number}", prompting, policy)

    start = time.process_time()
    answered = sum(isinstance(event, Answered) for event in drive(decoders(), engine, search, max_live=live))
    seconds = time.process_time() - start - engine.seconds
    if answered != questions:
        raise RuntimeError(f"{answered} of {questions} questions were answered")
    return len(engine.requests), seconds


if __name__ == "__main__":
    sys.exit(main())
