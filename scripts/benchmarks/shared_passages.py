"""Count the prompt tokens of questions over one manual, whose passages they share, against the fewest possible.

    python -m scripts.benchmarks.shared_passages docs/guides/running.md --engine vllm --questions 20

Each question has five passages in a row of the manual, so that a passage belongs to five questions. The counts do not
depend on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from retrieval.passage import Passage
from retrieval.readers import read_files
from retrieval.splitting import Splitting
from scripts.benchmarks.report import results_table
from scripts.benchmarks.speed.rivals import Recording
from scripts.benchmarks.speed.timing import answer_all, least_tokens, prompting_of
from scripts.benchmarks.speed.workload import FORMS, Item
from scripts.command import command
from selfrag.engines import load_engine
from selfrag.engines.vllm import CPU_BLOCK_SIZE
from selfrag.loading import resolve_model

PASSAGES = 5


@command
def main() -> int:
    """Print a line for each form of answers, with all questions at once and one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manual", help="a document")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--engine", default="vllm", help="vllm or transformers")
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=[form.name for form in FORMS],
        default=["short", "long"],
    )
    arguments = parser.parse_args()
    rows = read_files([arguments.manual], splitting=Splitting(words=100))
    items = questions([row.passage for row in rows], arguments.questions)
    model = resolve_model(arguments.model)
    prompting = prompting_of(str(model))
    lines = []
    for form in FORMS:
        if form.name not in arguments.forms:
            continue
        policy = form.with_passages(PASSAGES).policy
        for live in (len(items), 1):
            # A new engine each time, since it keeps prompts.
            engine = load_engine(arguments.engine, model)
            recording = Recording(engine)
            run = answer_all(items, prompting, policy, recording, max_live=live)
            engine.close()
            prompts = [request.prompt_ids for request in recording.requests]
            computed = run.work.prompt_tokens - run.work.cached_tokens
            fewest = least_tokens(prompts)
            blocks = least_tokens(prompts, CPU_BLOCK_SIZE)
            lines.append(
                {
                    "form": form.name,
                    "questions at once": live,
                    "prompt tokens": run.work.prompt_tokens,
                    "computed": computed,
                    "fewest": fewest,
                    "computed / fewest": computed / fewest,
                    f"fewest by blocks of {CPU_BLOCK_SIZE} / fewest": blocks / fewest,
                }
            )
    print(results_table(lines))
    return 0


def questions(passages: Sequence[Passage], count: int) -> list[Item]:
    """Return questions about a manual, each with the passages from one on, the last ones followed by the first."""
    items = []
    for number in range(count):
        start = number % len(passages)
        ordered = [*passages[start:], *passages[:start]]
        topic = " ".join(ordered[0].text.split()[:6])
        items.append(
            Item(f"What does the manual say about: {topic}?", tuple(ordered[:PASSAGES]))
        )
    return items


if __name__ == "__main__":
    sys.exit(main())
