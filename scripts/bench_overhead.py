"""Measure what decoders and driver cost beside the engine: `bench_overhead.py [--live 1,64,1024] [--questions N]`.

A scripted engine answers each request as soon as it is asked. Its own time is measured apart and taken off. Each number
of live questions is measured with the full search and with `branch_and_bound`. Processor time, so that other work on
the machine matters less. Before that: the memory of many questions in one call.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from command import command
from selfrag.decoding.answer import Answer
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.decoding.tree import Decoder
from selfrag.engines.base import Limits
from selfrag.engines.scripted import ScriptedEngine
from selfrag.prompting import Prompting
from selfrag.runtime.driver import Answered, drive
from speed.decoding import memory_gib
from speed.long_segments import EOS, FIRST, RELEVANCE, VOCABULARY, Characters, model, search

NOTHING = Generate((), 1)


@dataclass
class Timed(ScriptedEngine):
    """Knows how long it has worked, and forgets what it was asked."""

    seconds: float = 0.0

    def submit(self, request: Generate) -> int:
        """As of any engine."""
        ticket = ScriptedEngine.submit(self, request)
        self.requests[ticket] = NOTHING
        return ticket

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
    parser.add_argument("--memory", type=int, default=10_000, help="questions of one call, default %(default)s")
    given = parser.parse_args()
    print("| questions of one call | answers | MiB |\n|---|---|---|")
    for questions, keep in ((given.memory // 10, False), (given.memory, False), (given.memory, True)):
        run = measured(Decoding(mode="always", max_segments=3), questions, 256, keep=keep)
        print(f"| {questions:,} | {'all kept' if keep else 'used as they come'} | {run.mebibytes:.0f} |", flush=True)
    print("\n| search | live questions | requests | us a request | requests/s | share of a GPU at 300 requests/s |")
    print("|---|---|---|---|---|---|")
    for on in (False, True):
        for live in map(int, given.live.split(",")):
            questions = max(64, min(given.questions, live * 16))
            run = measured(Decoding(mode="always", max_segments=3, branch_and_bound=on), questions, live)
            each, name = run.seconds / run.requests, "branch and bound" if on else "full"
            print(
                f"| {name} | {live} | {run.requests:,} | {each * 1e6:.0f} | {1 / each:,.0f} | {300 * each:.1%} |",
                flush=True,
            )
    return 0


class Run(NamedTuple):
    """What many questions in one call took."""

    requests: int  # to the engine
    seconds: float  # of the processor, beside the engine
    mebibytes: float  # the most that was resident


def measured(policy: Decoding, questions: int, live: int, *, keep: bool = False) -> Run:
    """Answer questions, `live` at a time; `keep` holds all answers, as `SelfRAG.generate` does."""
    write = model(RELEVANCE["most are relevant"])
    engine = Timed(write, EOS, Limits(max_model_len=8192, vocab_size=FIRST + 0x110000))
    prompting, kept, answered, most = Prompting(Characters(), VOCABULARY), list[Answer](), 0, 0.0

    def decoders() -> Iterator[Decoder]:
        for number in range(questions):
            yield decode(f"Q{number}", prompting, policy)

    start = time.process_time()
    for event in drive(decoders(), engine, search, max_live=live):
        if isinstance(event, Answered):
            answered += 1
            if keep:
                kept.append(event.answer)
            if answered % 100 == 0:
                most = max(most, memory_gib(peak=False))
    if answered != questions:
        raise RuntimeError(f"{answered} of {questions} questions were answered")
    seconds = time.process_time() - start - engine.seconds
    return Run(len(engine.requests), seconds, 1024 * most)


if __name__ == "__main__":
    sys.exit(main())
