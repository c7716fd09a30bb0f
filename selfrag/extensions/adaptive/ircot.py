"""IRCoT (Trivedi et al. 2023, arXiv 2212.10509): each sentence of a chain of thought is the next query."""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfrag.extensions.adaptive.method import RetrievalMethod
from selfrag.extensions.adaptive.reader import QuestionWork, answer_of, has_answer
from selfrag.interface import Decoder, Passage

_CONCLUDES = re.compile(
    r"\s*(?:(?:thus|so)[ ,]|that is,|therefore|hence)|.*\d [+-] \d[\d,.]* = \d",
    re.IGNORECASE,
)
"""A sentence that draws a conclusion or computes, which is no query."""


@dataclass(frozen=True, slots=True)
class IRCoT(RetrievalMethod):
    """Settings.

    Attributes:
        steps: most sentences of the chain that leads the search.
        collected: most passages that are kept.
        sentence_tokens: new tokens of a sentence.
        tokens: new tokens of the reader's own chain.
    """

    steps: int = 8
    collected: int = 15
    sentence_tokens: int = 64
    tokens: int = 256
    tuned = "steps"
    grid = (1, 2, 4, 8)

    def decoder(self, work: QuestionWork) -> Decoder:
        """Search and reason in turns, then read all that was found."""
        kept: dict[tuple[str, str, str], Passage] = {}
        chain, query = "", work.question
        for _ in range(self.steps):
            # 1. Search for the last sentence, and keep what is new.
            for passage in (yield from work.search(query)):
                if len(kept) < self.collected:
                    kept.setdefault(passage.key, passage)
            # 2. Write the next sentence from all passages.
            prompt = work.fill("chain", list(kept.values()))
            written = yield from work.write_part(prompt, self.sentence_tokens, chain)
            chain += written.text
            if written.ended or has_answer(chain):
                break
            if not _CONCLUDES.match(written.text) and written.text.strip():
                query = written.text.strip()
        # 3. The reader answers from what was collected, with a chain of its own.
        prompt = work.fill("chain", list(kept.values()))
        read = yield from work.write(prompt, self.tokens)
        return work.answer(answer_of(read.text))
