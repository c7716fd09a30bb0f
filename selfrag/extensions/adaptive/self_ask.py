"""Self-Ask with search (Press et al. 2023, arXiv 2210.03350): the model asks follow-up questions, then answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from selfrag.extensions.adaptive.method import RetrievalMethod
from selfrag.extensions.adaptive.reader import QuestionWork, answer_of, has_answer
from selfrag.interface import Decoder

OPENING = "Are follow up questions needed here:"
_FOLLOW_UP = re.compile(r"\s*follow[ -]?up\s*:\s*(.+)", re.IGNORECASE)
_BREAK = re.compile(r"\S[^\n]*\n")


def line_end(text: str) -> int | None:
    """Return the number of characters of the first line that is not blank, with its line break; None if it is open."""
    line = _BREAK.search(text)
    return None if line is None else line.end()


@dataclass(frozen=True, slots=True)
class SelfAsk(RetrievalMethod):
    """Settings.

    Attributes:
        follow_ups: most follow-up questions.
        line_tokens: new tokens of a line.
    """

    follow_ups: int = 4
    line_tokens: int = 64
    tuned = "follow_ups"
    grid = (0, 1, 2, 4)
    ranges = {"follow_ups": (0, 4)}  # noqa: RUF012 - never changed

    def decoder(self, work: QuestionWork) -> Decoder:
        """Ask and answer follow-up questions, then the question."""
        prompt = work.fill("self-ask")
        # 1. Does the question need others?
        line = yield from work.write_part(prompt, self.line_tokens, OPENING, line_end)
        text = OPENING + line.text
        most = self.follow_ups if line.text.strip().casefold().startswith("yes") else 0
        for _ in range(most):
            # 2. The next follow-up question, or the answer.
            line = yield from work.write_part(prompt, self.line_tokens, text, line_end)
            follow_up = _FOLLOW_UP.match(line.text)
            if follow_up is None:
                break
            # 3. A search engine's own answer stands here in the paper; the model reads one from what is found.
            question = follow_up[1].strip()
            passages = yield from work.search(question)
            asking = replace(work, question=question, hint="")
            reply = yield from asking.read(passages)
            text = f"{text.rstrip()}\n{line.text.strip()}\n"
            text += f"Intermediate answer: {reply.text.strip()}\n"
        if has_answer(line.text):
            return work.answer(answer_of(line.text))
        # 4. Without an answer so far, the model is made to give one.
        text = f"{text.rstrip()}\nSo the final answer is:"
        last = yield from work.write_part(prompt, self.line_tokens, text, line_end)
        return work.answer(answer_of(last.text))
