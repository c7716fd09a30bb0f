"""An untrained model as a critic: asked with the teacher's prompt and demonstrations, its labels scored exactly.

The same words that a hosted teacher gets, so the figure says what prompting alone is worth. Knows no engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from critic.cases import Case
from critic.student.codec import Prompt
from critic.teacher.catalogue import form_of
from critic.teacher.prompts import answers, prompt
from selfrag.errors import VocabularyError
from selfrag.tokenization import HFTextCodec, TextCodec


@dataclass(frozen=True)
class PromptedCodec:
    """What `StudentCritic` asks an untrained model with.

    Attributes:
        text: safe tokenisation; demonstrations and cases alike are text.
        eos_id: ends an answer.
        max_length: longest prompt in tokens; a longer one loses words of its passage.
    """

    text: TextCodec
    eos_id: int
    max_length: int = 2048

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, max_length: int = 2048) -> PromptedCodec:
        """For a Hugging Face tokenizer.

        Raises:
            VocabularyError: it has no EOS.
        """
        if tokenizer.eos_token_id is None:
            raise VocabularyError("the tokenizer has no EOS token; set tokenizer.eos_token first")
        return cls(HFTextCodec(tokenizer), int(tokenizer.eos_token_id), max_length)

    def prompt(self, case: Case) -> Prompt:
        """The teacher's prompt; labels that its form does not offer have no ids.

        One that is too long loses the end of its passage, then its own beginning (`task`), both told in `dropped`.
        """
        surfaces = {label: surface for surface, label in answers(form_of(case)).items()}
        asked = tuple(self.text.encode(prompt(case)))
        options = tuple(
            tuple(self.text.encode(f" {surfaces[name]}")) if name in surfaces else () for name in case.labels.names
        )
        room = self.max_length - 1 - max(map(len, options)) - len(self.text.bos_ids)
        if len(asked) > room and case.evidence is not None and (words := case.evidence.text.split())[1:]:
            shorter = replace(case.evidence, text=" ".join(words[: max(1, len(words) - len(asked) + room)]))
            made = self.prompt(replace(case, evidence=shorter))
            dropped = Counter({"task": made.dropped.get("task", 0)})
            dropped["evidence"] = len(self.text.bos_ids) + len(asked) - len(made.ids) - dropped["task"]
            return replace(made, dropped=+dropped)  # without zeros: not every form shows the passage
        dropped = Counter({"task": len(asked) - room})
        return Prompt((*self.text.bos_ids, *asked[-room:]), options, +dropped)
