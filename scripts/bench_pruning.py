"""Measure branch and bound: `bench_pruning.py [--data FILE.jsonl.gz] [--questions N] [--segments N]`.

Answers the same questions with the full search and with `branch_and_bound`, in float32, and compares the generated
tokens, the time and the answers. The prefix cache is emptied before each run. A table goes to the standard output.
With `--scripted` a scripted model with segments of 60 to 100 tokens takes the place of the model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from command import command, progress
from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.trace import Status
from speed.long_segments import RELEVANCE, compared
from speed.workload import LONG, OVERVIEW, Item, demo_items, read_items


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="demo", help="checkpoint directory, hub name or `demo`")
    parser.add_argument("--data", type=Path, help="rows with instruction and passages; else made from the demo corpus")
    parser.add_argument("--questions", type=int, default=32, help="of each form, default %(default)s")
    parser.add_argument("--segments", type=int, default=LONG.policy.max_segments, help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="the fastest of so many counts, default %(default)s")
    parser.add_argument("--scripted", action="store_true", help="a scripted model with long segments")
    given = parser.parse_args()
    if given.scripted:
        print("| s(IsRel) | segments | tokens | with bounds | saved | other answers |\n|---|---|---|---|---|---|")
        for name, deciles in RELEVANCE.items():
            for segments in (1, 3, 7):
                before, after, differ = compared(deciles, given.questions, segments)
                saved = f"{1 - after / before:.1%}"
                print(f"| {name} | {segments} | {before:,} | {after:,} | {saved} | {differ} |", flush=True)
        return 0
    say = progress()
    items = read_items(given.data, given.questions, 5) if given.data else demo_items(given.questions, 5)
    rag = SelfRAG.from_pretrained(given.model, retriever=_nothing, engine="vllm", dtype="float32", kv_cache_gib=1.0)
    print(
        "| form | questions | candidates | given up | tokens | with bounds | saved | s | with bounds | other answers |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for form in (LONG, OVERVIEW):
        asked = form.ask(items)
        policy = replace(form.policy, max_segments=given.segments)
        runs: dict[bool, list[tuple[float, list[Answer]]]] = {False: [], True: []}
        for number in range(given.rounds):
            for on in (False, True) if number % 2 == 0 else (True, False):
                say(f"{form.name}, branch_and_bound={on}")
                runs[on].append(_timed(rag, asked, replace(policy, branch_and_bound=on)))
        full, pruned = (runs[on][0][1] for on in (False, True))
        nodes = [node for answer in pruned for node in answer.trace.nodes]
        tokens = [sum((answer.usage for answer in one), Usage()).generated_tokens for one in (full, pruned)]
        seconds = [min(taken for taken, _ in runs[on]) for on in (False, True)]
        differ = sum(_view(a) != _view(b) for a, b in zip(full, pruned, strict=True))
        given_up = sum(node.status is Status.BOUNDED for node in nodes)
        print(
            f"| {form.name} | {len(asked)} | {len(nodes)} | {given_up} | {tokens[0]:,} | {tokens[1]:,}"
            f" | {1 - tokens[1] / tokens[0]:.1%} | {seconds[0]:.1f} | {seconds[1]:.1f} | {differ} |",
            flush=True,
        )
    rag.close()
    return 0


def _timed(rag: SelfRAG, items: list[Item], policy: Any) -> tuple[float, list[Answer]]:
    rag.engine._engine.reset_prefix_cache()  # type: ignore[attr-defined]
    start = time.perf_counter()
    answers = rag.generate(
        [item.question for item in items], evidence=[item.passages for item in items], decoding=policy
    )
    return time.perf_counter() - start, answers


def _view(answer: Answer) -> object:
    return answer.text, [(segment.text, segment.citation) for segment in answer.segments]


def _nothing(queries: Sequence[str], k: int, /) -> list[list[Passage]]:
    return [[] for _ in queries]


if __name__ == "__main__":
    sys.exit(main())
