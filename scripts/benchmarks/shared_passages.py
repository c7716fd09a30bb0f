"""Count the prompt tokens of questions over one manual, whose passages they share, against the fewest possible.

    python -m scripts.benchmarks.shared_passages docs/guides/running.md --engine vllm --questions 20

Each question has five passages in a row of the manual, so that a passage belongs to five questions. The counts do not
depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.passage import Passage
from retrieval.readers import read_files
from retrieval.splitting import Splitting
from scripts.benchmarks.report import results_table
from scripts.benchmarks.speed.rivals import Recording
from scripts.benchmarks.speed.timing import answer_all, least_tokens, prompting_of
from scripts.benchmarks.speed.workload import FORMS, Item, chosen_forms
from scripts.command import command
from selfrag.engines import load_engine
from selfrag.engines.vllm import CPU_BLOCK_SIZE
from selfrag.loading import resolve_model

PASSAGES = 5


@command
def main(
    manual: str,
    *,
    model: str = "demo",
    engine: str = "vllm",
    questions: int = 20,
    forms: list[str] = list(FORMS),  # noqa: B006 - of the command line alone
) -> None:
    """Print a line for each form of answers, with all questions at once and one after the other.

    Args:
        manual: a document.
        model: checkpoint directory, hub name or `demo`.
        engine: vllm or transformers.
        questions: their number.
        forms: short or long; repeatable, both by default.
    """
    rows = read_files([manual], splitting=Splitting(words=100))
    items = questions_on([row.passage for row in rows], questions)
    path = resolve_model(model)
    prompting = prompting_of(str(path))
    lines = []
    for form in chosen_forms(forms):
        policy = form.with_passages(PASSAGES).policy
        for live in (len(items), 1):
            # A new engine each time, since it keeps prompts.
            loaded = load_engine(engine, path)
            recording = Recording(loaded)
            run = answer_all(items, prompting, policy, recording, max_live=live)
            loaded.close()
            prompts = [request.prompt_ids for request in recording.requests]
            computed = run.work.prompt_tokens - run.work.cached_tokens
            fewest = least_tokens(prompts)
            blocks = least_tokens(prompts, CPU_BLOCK_SIZE)
            line = {
                "form": form.name,
                "questions at once": live,
                "prompt tokens": run.work.prompt_tokens,
                "computed": computed,
                "fewest": fewest,
                "computed / fewest": computed / fewest,
                f"fewest by blocks of {CPU_BLOCK_SIZE} / fewest": blocks / fewest,
            }
            lines.append(line)
    print(results_table(lines))


def questions_on(passages: Sequence[Passage], count: int) -> list[Item]:
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
    main()
