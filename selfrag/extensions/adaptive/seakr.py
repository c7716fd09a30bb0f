"""SeaKR (Yao et al. 2024, arXiv 2406.19215): searches, ranks and answers by how much states of samples differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from selfrag.extensions.adaptive.method import RetrievalMethod
from selfrag.extensions.adaptive.reader import (
    QuestionWork,
    Written,
    answer_of,
    has_answer,
)
from selfrag.extensions.adaptive.words import words_of
from selfrag.interface import (
    Decoder,
    Passage,
    Steps,
)

ALPHA = 1e-3
"""Regularises the Gram matrix."""


def gram_uncertainty(states: Sequence[NDArray[np.float32]]) -> float:
    """Return the mean log-eigenvalue of the regularised Gram matrix of centred hidden states; infinity for none."""
    if not states:
        return math.inf
    rows = np.stack(states).astype(np.float64)
    rows -= rows.mean(axis=1, keepdims=True)
    count = len(rows)
    _, value = np.linalg.slogdet(rows @ rows.T + ALPHA * np.eye(count))
    return float(value) / count


@dataclass(frozen=True, slots=True)
class Draft:
    """A text, and how unsure the model is of it."""

    written: Written
    uncertainty: float

    @property
    def answers(self) -> bool:
        """Return whether it comes to the answer."""
        return has_answer(self.written.text)


@dataclass(frozen=True, slots=True)
class SeaKR(RetrievalMethod):
    """Settings; the defaults are those of the released code, but for the tokens.

    Attributes:
        threshold: a sentence that is more uncertain starts a search.
        samples: random continuations whose hidden states are compared.
        sure: words whose tokens are this probable stay in a query.
        steps: most sentences of the chain.
        collected: most passages that are kept.
        sentence_tokens: new tokens of a sentence.
        tokens: new tokens of an answer.
    """

    threshold: float = -6.0
    samples: int = 20
    sure: float = 0.9
    steps: int = 7
    collected: int = 5
    sentence_tokens: int = 64
    tokens: int = 100
    tuned = "threshold"
    grid = (-6, -4, -2, 0)
    ranges = {"threshold": (-math.inf, math.inf)}  # noqa: RUF012 - never changed

    def decoder(self, work: QuestionWork) -> Decoder:
        """Write a chain of thought with searches, and answer from it or from the passages."""
        chain, last = "", ""
        kept: list[Passage] = []
        queries: set[str] = set()
        for _ in range(self.steps):
            draft = yield from self._draft(work, kept, chain)
            # 1. An unsure sentence is a query, without its unsure words.
            if draft.uncertainty > self.threshold and not draft.answers:
                query = self.query(draft.written, work.question, last)
                hits = []
                if query not in queries:
                    hits = yield from work.search(query)
                queries.add(query)
                # 2. Each new passage is read beside the kept ones; the one that leaves least uncertainty is kept.
                known = {passage.key for passage in kept}
                drafts = []
                for hit in hits:
                    if hit.key not in known:
                        draft = yield from self._draft(work, [*kept, hit], chain)
                        drafts.append((hit, draft))
                if not drafts:
                    break
                hit, draft = min(drafts, key=lambda pair: pair[1].uncertainty)
                kept.append(hit)
            if draft.answers:
                break
            last = draft.written.text
            chain += last
            if draft.written.ended or len(kept) >= self.collected:
                break
        # 3. Answer from the passages and from the chain; the surer answer is taken.
        rationale = [Passage("chain", chain.strip())] if chain.strip() else []
        by_passages = yield from self._draft(work, kept)
        by_chain = yield from self._draft(work, rationale)
        best = min(by_passages, by_chain, key=lambda draft: draft.uncertainty)
        return work.answer(answer_of(best.written.text))

    def _draft(
        self, work: QuestionWork, passages: Sequence[Passage], chain: str | None = None
    ) -> Steps[Draft]:
        """Write the next sentence of a chain, or a whole answer, and say how unsure it is."""
        prompt = work.fill("chain", passages)
        if chain is None:
            request = work.request(prompt, self.tokens)
            written = yield from work.write(prompt, self.tokens)
        else:
            request = work.request(prompt, self.sentence_tokens, chain)
            request = replace(request, sentence=True)
            written = yield from work.write_part(prompt, self.sentence_tokens, chain)
        # 1. Draw samples.
        drawn = []
        if written.text.strip():
            seeds = range(self.samples)
            drawn = [replace(request, temperature=1.0, seed=seed) for seed in seeds]
        samples = yield from work.ask(drawn)
        # 2. Compare the hidden states at their ends.
        replies = []
        for sample in samples:
            if sample.text.strip():
                text = request.prefill + sample.text
                replies.append(replace(request, prefill=text))
        internals = yield from work.inspect(replies)
        states = [item.state for item in internals]
        return Draft(written, gram_uncertainty(states))

    def query(self, sentence: Written, question: str, last: str) -> str:
        """Return the words that are sure, or stand in the question or the sentence before; the question if none do."""
        tokens = sentence.probable("SeaKR")
        kept = []
        for word in words_of([token.token for token in tokens]):
            least = min(token.logprob for token in tokens[word.tokens])
            is_known = word.text in question or word.text in last
            if word.has_content and (is_known or math.exp(least) >= self.sure):
                kept.append(word.text)
        return " ".join(kept) or question
