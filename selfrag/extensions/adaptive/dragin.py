"""DRAGIN (Su et al. 2024, arXiv 2403.10081): searches at a word that is unsure and that later words attend to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from selfrag.extensions.adaptive.method import RetrievalMethod
from selfrag.extensions.adaptive.reader import (
    QuestionWork,
    answer_of,
    count_before,
    has_answer,
)
from selfrag.extensions.adaptive.words import words_of
from selfrag.interface import (
    ChatPrompt,
    Decoder,
    Steps,
    TextPrompt,
)


@dataclass(frozen=True, slots=True)
class Dragin(RetrievalMethod):
    """Settings; the defaults are those of the example in the released README.

    Attributes:
        threshold: a word with a higher need starts a search.
        query_words: most words of a query.
        sentence_tokens: new tokens of a sentence.
        tokens: new tokens of all sentences.
    """

    threshold: float = 1.2
    query_words: int = 40
    sentence_tokens: int = 64
    tokens: int = 256
    tuned = "threshold"
    grid = (0.6, 0.9, 1.2, 1.5)
    ranges = {"threshold": (0, math.inf)}  # noqa: RUF012 - never changed

    def decoder(self, work: QuestionWork) -> Decoder:
        """Write sentence by sentence."""
        chain, spent = "", 0
        while True:
            # 1. The next sentence, without passages.
            prompt = work.fill("chain")
            most = min(self.sentence_tokens, self.tokens - spent)
            written = yield from work.write_part(prompt, most, chain)
            # 2. From a word that needs a search on, it is written again from what that finds.
            if written.text.strip() and not has_answer(written.text):
                need = yield from self.need(work, prompt, chain, written.text)
                if need is not None:
                    before, query = need
                    chain += before
                    prompt = work.fill("chain", (yield from work.search(query)))
                    written = yield from work.write_part(prompt, most, chain)
            chain += written.text
            spent += max(1, len(written.tokens or ()))
            if written.ended or has_answer(chain) or spent >= self.tokens:
                return work.answer(answer_of(chain))

    def need(
        self,
        work: QuestionWork,
        prompt: TextPrompt | ChatPrompt,
        chain: str,
        sentence: str,
    ) -> Steps[tuple[str, str] | None]:
        """Return what stands before the first word that needs a search, and its query; None if no word does."""
        request = work.request(prompt, 1, chain + sentence)
        (internals,) = yield from work.inspect([request])
        texts = internals.texts
        reply = len(texts) - len(internals.entropies)  # its first token
        start = reply + count_before(texts[reply:], len(chain))  # that of the sentence
        entropies = internals.entropies[start - reply :]
        attention = internals.attention[start - reply :]  # [sentence, all]
        # 1. RIND: entropy, times the most attention of a later token, relative to the other words.
        peaks = np.tril(attention[:, start:], -1).max(axis=0, initial=0.0)
        words = words_of(texts[start:])
        mean = peaks.sum() / max(1, len(words)) or 1.0
        for word in words:
            influence = peaks[word.tokens].sum() / mean
            need = influence * entropies[word.tokens].mean()
            if need <= self.threshold or not word.has_content:
                continue
            # 2. QFS: the words before it that it attends to most, in the order of the text.
            end = start + word.tokens.start
            begin = "".join(texts[:reply]).rfind(work.question)
            question = slice(
                count_before(texts, begin + 1) - 1,
                count_before(texts, begin + len(work.question)),
            )
            weights = attention[word.tokens].mean(axis=0)  # [all]
            context: list[tuple[float, str]] = []
            for part in (question, slice(reply, end)):
                for earlier in words_of(texts[part]):
                    weight = float(weights[part][earlier.tokens].sum())
                    if earlier.has_content:
                        context.append((weight, earlier.text))
            order = sorted(range(len(context)), key=lambda place: -context[place][0])
            best = sorted(order[: self.query_words])
            query = " ".join([context[place][1] for place in best])
            before = "".join(texts[reply:end])[len(chain) :]
            return before, query or work.question
        return None
