"""What the history of the released code, and its marks of citations, change for long answers of the demo model.

    python -m scripts.reproduction.released_citations hotpot_dev.jsonl --limit 20 --out runs/released

Each question is asked as ASQA's are, with three passages, under `Decoding.official` with three kinds of history. The
citations are read by sentence (each sentence of a segment cites its passage) and by segment (one number at its end, as
the released code writes it), and counted as ALCE does. The critic of the demo judges in the place of TRUE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from retrieval.passage import Passage
from scripts.command import command
from selfrag import SelfRAG
from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.decoding.token_writer import with_tokens
from selfrag.evaluation.intervals import bracketed, mean
from selfrag.evaluation.items import Item, item_of, output_of, read_items
from selfrag.evaluation.metrics.alce import CitedClaim, cited_sentences, cites
from selfrag.evaluation.metrics.entailment import Remembered, remembered
from selfrag.evaluation.presets import preset
from selfrag.evaluation.released import cited_as_released
from selfrag.intrinsics.named import open_judge

HISTORIES = ("text", "written", "leaked")
PASSAGES = 3


@command
def main(data: Path, *, limit: int = 20, tokens: int = 60, out: Path) -> None:
    """Answer, judge and print a table.

    Args:
        data: questions with passages, such as `hotpot_dev.jsonl`.
        limit: of the questions, the first so many.
        tokens: most new tokens of a completion.
        out: folder of the judge's verdicts.
    """
    wording = preset("asqa").protocol("official").wording
    items = []
    for item in read_items(data, item_of)[:limit]:
        question = replace(item, query=item.query or item.instruction)
        items.append(
            replace(wording.worded(question), passages=item.passages[:PASSAGES])
        )
    out.mkdir(parents=True, exist_ok=True)
    judge = remembered(open_judge("critic:demo"), out)
    questions: list[str] = [item.instruction for item in items]
    evidence: list[Sequence[Passage]] = [item.passages for item in items]
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
                responses = list(map(_claims, items, cited))
                counts = (written, sum(map(len, responses)))
                row = [history, *(f"{count / len(items):.1f}" for count in counts)]
                row += [name, *_figures(responses, judge)]
                print(f"| {' | '.join(row)} |", flush=True)


def _claims(item: Item, answer: Answer) -> tuple[CitedClaim, ...]:
    known = {passage.id: passage for passage in item.passages}
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
