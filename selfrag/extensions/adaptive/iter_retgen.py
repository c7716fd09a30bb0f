"""ITER-RETGEN (Shao et al. 2023, arXiv 2305.15294): a whole answer and the question are the next query."""

from __future__ import annotations

from dataclasses import dataclass

from selfrag.extensions.adaptive.method import RetrievalMethod
from selfrag.extensions.adaptive.reader import QuestionWork, answer_of
from selfrag.interface import Decoder


@dataclass(frozen=True, slots=True)
class IterRetGen(RetrievalMethod):
    """Settings.

    Attributes:
        iterations: searches, each with an answer after it.
        tokens: new tokens of an answer.
    """

    iterations: int = 2
    tokens: int = 256
    tuned = "iterations"
    grid = (1, 2, 3, 4)

    def decoder(self, work: QuestionWork) -> Decoder:
        """Search and answer in turns."""
        query, text = work.question, ""
        for _ in range(self.iterations):
            passages = yield from work.search(query)
            written = yield from work.write(work.fill("chain", passages), self.tokens)
            text = written.text
            query = f"{text.strip()} {work.question}"
        return work.answer(answer_of(text))
