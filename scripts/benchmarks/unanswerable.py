"""Which threshold keeps a model from answering questions that its documents do not answer, and what does it cost?

python -m scripts.benchmarks.unanswerable FILE.jsonl .. [--model demo] [--limit 100]

The passages of all rows are indexed together. The questions, `limit` of each kind and file, are asked as users ask
them. For each signal of an answer (its least IsRel, its least IsSup, the retrieval score of what it cites) the lowest
threshold is chosen on half of the questions that prevents most wrong answers and loses at most a fifth of the answers
to answerable questions. The other half is for the table, and is asked again with `Decoding.strict`.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from retrieval import index_passages
from retrieval.passage import Passage
from scripts.command import command
from selfrag.api import SelfRAG
from selfrag.common.errors import UserError
from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.evaluation.intervals import bracketed, mean
from selfrag.evaluation.items import Item
from selfrag.evaluation.task_files import read_task
from selfrag.loading import DEMO, resolve_encoder
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role

MOST_LOST = 0.2
"""Share of the answers to answerable questions that a threshold may lose on the first half."""


@dataclass(frozen=True, slots=True)
class QuestionCase:
    """A question with what was answered; no signals where the model abstained."""

    item: Item
    answered: bool
    signals: Mapping[str, float]

    def passes(self, signal: str, threshold: float) -> bool:
        """Return whether it is answered under a threshold."""
        return self.answered and self.signals[signal] >= threshold


@command
def main(
    files: list[str],
    *,
    model: str = "demo",
    engine: str | None = None,
    limit: int = 100,
) -> None:
    """Print the table.

    Args:
        files: rows with passages and a label, answerable or unanswerable.
        model: checkpoint directory, hub name or demo.
        engine: vllm or transformers; by default the best one installed.
        limit: questions of each kind and file.
    """
    passages: dict[str, Passage] = {}
    items: list[Item] = []
    for file in files:
        rows = read_task(Path(file)).items
        for row in rows:
            passages |= {passage.id: passage for passage in row.passages}
        for kind in (True, False):
            of_kind = [row for row in rows if row.answerable is kind and row.passages]
            random.Random(0).shuffle(of_kind)  # noqa: S311 - a sample
            items += of_kind[:limit]
    random.Random(1).shuffle(items)  # noqa: S311 - two halves
    if not items:
        raise UserError("no row has a label and passages")
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        index_passages(passages.values(), index, encoder=resolve_encoder(DEMO))
        with SelfRAG.from_pretrained(
            model, retriever=index, engine=engine, judges=["token_isrel"]
        ) as rag:
            cases = ask(rag, items, Decoding())
            chosen, reported = cases[: len(cases) // 2], cases[len(cases) // 2 :]
            strict = ask(rag, [case.item for case in reported], Decoding.strict())
    print(
        "| setting | wrong answers | answers to answerable questions |\n|---|---|---|"
    )
    show("as it is", reported, [case.answered for case in reported])
    for signal in ("IsRel", "IsSup", "retrieval"):
        threshold = choose(chosen, signal)
        passed = [case.passes(signal, threshold) for case in reported]
        show(f"{signal} at least {threshold:.3f}", reported, passed)
    show("Decoding.strict()", strict, [case.answered for case in strict])


def ask(rag: SelfRAG, items: Sequence[Item], decoding: Decoding) -> list[QuestionCase]:
    """Return the questions with their answers' signals."""
    questions = [item.instruction for item in items]
    answers = rag.generate(questions, decoding=decoding)
    return [_case(*pair) for pair in zip(items, answers, strict=True)]


def _case(item: Item, answer: Answer) -> QuestionCase:
    if answer.abstained:
        return QuestionCase(item, False, {})
    judgments = [segment.judgments for segment in answer.segments]
    scores = map(attrgetter("score"), answer.citations)
    signals = {
        "IsRel": _least(judgments, Role.RELEVANCE),
        "IsSup": _least(judgments, Role.SUPPORT),
        "retrieval": max(scores, default=0.0),
    }
    return QuestionCase(item, bool(answer.text), signals)


def _least(judgments: Sequence[Mapping[Role, Judgment | None]], role: Role) -> float:
    scores = []
    for of_segment in judgments:
        judgment = of_segment.get(role)
        if judgment is not None:
            scores.append(judgment.score)
    return min(scores, default=0.0)


def choose(cases: Sequence[QuestionCase], signal: str) -> float:
    """Return the threshold, in steps of .005, that prevents most wrong answers and loses few others."""
    kept = [case for case in cases if case.answered and case.item.answerable]
    best = 0.0
    for step in range(201):
        threshold = step / 200
        lost = sum(not case.passes(signal, threshold) for case in kept)
        if lost <= MOST_LOST * len(kept):
            best = threshold
    return best


def show(setting: str, cases: Sequence[QuestionCase], answered: Sequence[bool]) -> None:
    """Print how many questions of each kind are answered, with intervals in percent."""
    cells = []
    for kind in (False, True):
        of_kind = []
        for case, is_answered in zip(cases, answered, strict=True):
            if case.item.answerable is kind:
                of_kind.append(float(is_answered))
        count = f"{sum(of_kind):.0f} of {len(of_kind)}"
        cells.append(f"{count}, {bracketed(mean(of_kind))}%")
    print(f"| {setting} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
