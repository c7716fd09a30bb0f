"""CRAG and Self-CRAG (Yan et al. 2024, arXiv 2401.15884): passages are judged, refined, and searched for again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from selfrag.extensions.adaptive.method import RetrievalMethod
from selfrag.extensions.adaptive.reader import QuestionWork, judge_all, opened
from selfrag.interface import (
    Decoder,
    Decoding,
    Judge,
    Passage,
    Prompting,
    Steps,
    decode,
    find_judge,
    sentence_finder,
)

_finder = cache(sentence_finder)


@dataclass(frozen=True, slots=True)
class CRAG(RetrievalMethod):
    """Settings; the paper's scores from -1 to 1 are from 0 to 1 here.

    Attributes:
        upper: retrieval is correct if a passage has a higher score.
        lower: retrieval is incorrect if all passages have a lower score; else it is ambiguous.
        least: score of a strip that stays.
        strips: most strips that stay.
        sentences: of a strip.
        judge: who judges, such as `nli:MODEL`; by default IsRel of the model itself.
    """

    upper: float = 0.8
    lower: float = 0.05
    least: float = 0.25
    strips: int = 5
    sentences: int = 3
    judge: str = ""
    tuned = "upper"
    grid = (0.2, 0.5, 0.8, 0.95)

    def decoder(self, work: QuestionWork) -> Decoder:
        """Correct what was found, and answer from it."""
        knowledge = yield from self.knowledge(work)
        written = yield from work.read(knowledge)
        return work.answer(written.text)

    def knowledge(self, work: QuestionWork) -> Steps[list[Passage]]:
        """Return what the model may read: the parts of passages that matter, and those of a further search."""
        # 1. Judge the retrieval.
        passages = yield from work.search(work.question)
        scores = yield from self._scores(work, passages)
        is_correct = any(score > self.upper for score in scores)
        is_incorrect = all(score < self.lower for score in scores)
        # 2. Refine what was found, unless all of it is wrong.
        knowledge: list[Passage] = []
        if not is_incorrect:
            knowledge += yield from self._refined(work, passages)
        # 3. Search again by keywords, unless the first search was right.
        if not is_correct:
            query = yield from work.write(work.fill("keywords"), tokens=32)
            further = yield from work.search(query.text.strip() or work.question)
            knowledge += yield from self._refined(work, further)
        return knowledge

    def _refined(
        self, work: QuestionWork, passages: Sequence[Passage]
    ) -> Steps[list[Passage]]:
        """Return the passages with their best strips alone, in the order of the text."""
        strips: list[tuple[int, Passage]] = []
        for number, passage in enumerate(passages):
            texts = self.split(passage.text)
            strips += [(number, replace(passage, text=text)) for text in texts]
        scores = yield from self._scores(work, [strip for _, strip in strips])
        best = sorted(range(len(strips)), key=lambda place: -scores[place])
        kept = sorted(best[: self.strips])
        parts_of: dict[int, list[str]] = {}
        for place in kept:
            if scores[place] >= self.least:
                number, strip = strips[place]
                parts_of.setdefault(number, []).append(strip.text)
        return [
            replace(passages[number], text=" ".join(parts))
            for number, parts in parts_of.items()
        ]

    def split(self, text: str) -> list[str]:
        """Return the strips of a passage: runs of sentences; a short passage is one strip."""
        spans = _finder()(text)
        if len(spans) <= 2:
            return [text]
        strips = []
        for first in range(0, len(spans), self.sentences):
            run = spans[first : first + self.sentences]
            strips.append(text[run[0][0] : run[-1][1]])
        return strips

    def _scores(
        self, work: QuestionWork, passages: Sequence[Passage]
    ) -> Steps[list[float]]:
        """Return how relevant each passage is, from 0 to 1."""
        if not passages:
            return []
        inputs = [replace(work.state, passages=(passage,)) for passage in passages]
        judgments = yield from judge_all(self._judge(work), inputs)
        return [judgment.score for judgment in judgments]

    def _judge(self, work: QuestionWork) -> Judge:
        if self.judge:
            return opened(self.judge)
        model = work.reader.model
        name = "token_isrel" if isinstance(model, Prompting) else "prompt_isrel"
        return find_judge(name, (), model)


@dataclass(frozen=True, slots=True)
class SelfCRAG(CRAG):
    """Self-RAG that reads what CRAG has corrected in place of what a search finds."""

    def decoder(self, work: QuestionWork) -> Decoder:
        """Correct what was found, and decode with reflection from it."""
        knowledge = yield from self.knowledge(work)
        policy = Decoding(
            passages=max(1, len(knowledge)),
            passage_tokens=work.reader.passage_tokens,
            max_segments=1,
            segment_tokens=work.answer_tokens,
            answer_tokens=work.answer_tokens,
            without_evidence="write",
        )
        question = f"{work.question}\n\n{work.hint}" if work.hint else work.question
        decoder = decode(question, work.reader.model, policy, passages=knowledge)
        answer = yield from decoder
        return replace(answer, note=work.note or answer.note)
