"""What the history of the released code, and its marks of citations, change for long answers of the demo model.

    python -m scripts.reproduction.released_citations CORPUS.jsonl.gz --limit 24 --out runs/released

The demo model writes one sentence to most questions, so it is asked for an overview of a topic that has three passages
or more in the corpus, always with the first three, under `Decoding.official` with three kinds of history. The citations
are read by sentence (each sentence of a segment cites its passage) and by segment (one number at its end, as the
released code writes it), and counted as ALCE does. The critic of the demo judges in the place of TRUE.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from retrieval.passage import Passage
from scripts.command import command
from selfrag import SelfRAG
from selfrag.common.jsonl import read_jsonl
from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.decoding.token_writer import with_tokens
from selfrag.evaluation.intervals import bracketed, mean
from selfrag.evaluation.items import output_of
from selfrag.evaluation.metrics.alce import CitedClaim, cited_sentences, cites
from selfrag.evaluation.metrics.entailment import Remembered, remembered
from selfrag.evaluation.released import cited_as_released
from selfrag.intrinsics.named import open_judge

HISTORIES = ("text", "written", "leaked")
PASSAGES = 3


@command
def main(corpus: Path, *, limit: int = 20, tokens: int = 120, out: Path) -> None:
    """Answer, judge and print a table.

    Args:
        corpus: passages in JSON Lines, several of a title.
        limit: of the topics, a seeded sample.
        tokens: most new tokens of a completion.
        out: folder of the judge's verdicts.
    """
    by_title: dict[str, list[Passage]] = {}
    for passage in read_jsonl(corpus, _passage):
        by_title.setdefault(passage.title, []).append(passage)
    titles = [title for title, known in by_title.items() if len(known) >= PASSAGES]
    topics = random.Random(0).sample(titles, limit)  # noqa: S311 - no cryptography
    questions = [f"Give me an overview of {topic}." for topic in topics]
    evidence: list[Sequence[Passage]] = [by_title[topic][:PASSAGES] for topic in topics]
    out.mkdir(parents=True, exist_ok=True)
    judge = remembered(open_judge("critic:demo"), out)
    print("| history | segments | sentences | cited by | recall | precision |")
    print("|---|---|---|---|---|---|")
    with SelfRAG.from_pretrained("demo") as rag:
        prompting = with_tokens(rag.prompting)
        for history in HISTORIES:
            policy = Decoding.official(
                mode="always",
                passages=PASSAGES,
                max_segments=6,
                segment_tokens=tokens,
                history=history,
            )
            answers = rag.generate(questions, evidence=evidence, decoding=policy)
            written = 0
            for answer in answers:
                written += len(answer.trace.path(answer.trace.best))
            marked = [cited_as_released(answer, prompting) for answer in answers]
            for name, cited in (("sentence", answers), ("segment", marked)):
                responses = list(map(_claims, evidence, cited))
                counts = (written, sum(map(len, responses)))
                row = [history, *(f"{count / limit:.1f}" for count in counts)]
                row += [name, *_figures(responses, judge)]
                print(f"| {' | '.join(row)} |", flush=True)


def _passage(row: dict[str, str]) -> Passage:
    return Passage(row["id"], row["text"], row["title"])


def _claims(passages: Sequence[Passage], answer: Answer) -> tuple[CitedClaim, ...]:
    known = {passage.id: passage for passage in passages}
    return cited_sentences(output_of(answer, marked=True), known, marked=True)


def _figures(responses: Sequence[Sequence[CitedClaim]], judge: Remembered) -> list[str]:
    """Return recall and precision in percent with their intervals; a response without sentences counts 0."""
    recall, precision = [], []
    for response in cites(responses, judge.entails):
        recall.append(0.0 if response is None else response.recall)
        precision.append(0.0 if response is None else response.precision)
    return [bracketed(mean(recall)), bracketed(mean(precision))]


if __name__ == "__main__":
    main()
