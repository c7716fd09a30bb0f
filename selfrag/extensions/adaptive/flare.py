"""FLARE, direct (Jiang et al. 2023, arXiv 2305.06983): looks a sentence ahead, and searches where unsure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from selfrag.extensions.adaptive.method import RetrievalMethod
from selfrag.extensions.adaptive.reader import (
    QuestionWork,
    Written,
    answer_of,
    has_answer,
)
from selfrag.interface import Decoder


@dataclass(frozen=True, slots=True)
class Flare(RetrievalMethod):
    """Settings; the defaults are those of the released configuration for 2WikiMultihopQA.

    Attributes:
        threshold: a sentence stays if all its tokens are more probable.
        mask: tokens that are not more probable are left out of the query.
        sentence_tokens: new tokens of a sentence.
        tokens: new tokens of all sentences that stay.
    """

    threshold: float = 0.8
    mask: float = 0.4
    sentence_tokens: int = 64
    tokens: int = 256
    tuned = "threshold"
    grid = (0.2, 0.4, 0.6, 0.8)

    def decoder(self, work: QuestionWork) -> Decoder:
        """Write sentence by sentence."""
        chain, spent = "", 0
        # 1. The first sentence is looked ahead with what the question finds, later ones without passages.
        passages = yield from work.search(work.question)
        while True:
            prompt = work.fill("chain", passages)
            most = min(self.sentence_tokens, self.tokens - spent)
            written = yield from work.write_part(prompt, most, chain)
            # 2. An unsure sentence is a query without its unsure tokens, and is written again from what that finds.
            query = self.query(written)
            if query:
                passages = yield from work.search(query)
                prompt = work.fill("chain", passages)
                written = yield from work.write_part(prompt, most, chain)
            chain += written.text
            spent += max(1, len(written.probable("FLARE")))
            if written.ended or has_answer(chain) or spent >= self.tokens:
                return work.answer(answer_of(chain))
            passages = []

    def query(self, sentence: Written) -> str:
        """Return what to search for; empty where the model is sure of every token."""
        tokens = sentence.probable("FLARE")
        if all(math.exp(token.logprob) > self.threshold for token in tokens):
            return ""
        kept = ""
        for token in tokens:
            kept += token.token if math.exp(token.logprob) > self.mask else " "
        return " ".join(kept.split())
