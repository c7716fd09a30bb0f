r"""The untuned base model with passages in its prompt: plain RAG through the model's own chat template. Sans-IO.

The template is trusted and tokenised with its control tokens; everything that stands in it, passages and questions, is
tokenised by the safe codec. A tokenizer without a chat template gets this project's instruction layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selfrag.decoding.tree import Decoder
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.systems.plain import Prompt, choose, write
from selfrag.evaluation.tasks.choices import choices
from selfrag.evaluation.tasks.task import Task
from selfrag.prompting import SELFRAG, passage_ids
from selfrag.tokenization import ReadOnlyTokenizer, TextCodec

_SLOT = "SELFRAGCONTENTSLOT"
PASSAGES = "Use these passages to answer the question.\n\n"
QUESTION = "Question: "


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat template around one user message, as ids.

    Attributes:
        before: up to the user's words.
        after: from there to where the answer begins.
        source: `chat_template`, or the name of the layout that stands in for it.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    source: str

    @classmethod
    def of(cls, tokenizer: Any, codec: TextCodec) -> Chat:
        """Read the template of a Hugging Face tokenizer.

        Raises:
            UserError: the template cannot be rendered, or does not keep the user's words as they are.
        """
        if not getattr(tokenizer, "chat_template", None):
            before, after = codec.encode(SELFRAG.before), codec.encode(SELFRAG.after)
            return cls((*codec.bos_ids, *before), tuple(after), SELFRAG.name)
        message = [{"role": "user", "content": _SLOT}]
        try:
            text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs and raise what they like
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"the chat template of the base model cannot be rendered: {reason}") from error
        before, slot, after = text.partition(_SLOT)
        if not slot or _SLOT in after:
            raise UserError("the chat template of the base model changes or repeats the user's words")
        ids = ReadOnlyTokenizer(tokenizer, split_special_tokens=False).ids((before, after))
        return cls(tuple(ids[0]), tuple(ids[1]), "chat_template")


@dataclass(frozen=True, slots=True)
class Untuned:
    """Baseline (i): base model, the first `passages` of the item in the prompt.

    Attributes:
        codec: safe tokenisation.
        chat: the model's chat template.
        eos_id: ends an answer.
        passages: how many; 0 asks the model alone.
        passage_tokens: a passage is cut here.
    """

    codec: TextCodec
    chat: Chat
    eos_id: int
    passages: int
    passage_tokens: int = 256
    cites_all: bool = True

    def decoder(self, item: Item, task: Task) -> Decoder:
        """One greedy answer, or the most probable option."""
        found = choices(item) if item.options else None
        # A question without its options says what is wanted; a list of them would turn it into one with options.
        hint = "" if item.cloze else task.hint.format(choices=", ".join(found.surfaces if found else ()))
        prompt = self.prompt(item, hint)
        if found:
            return (yield from choose(prompt, self.codec, found.surfaces, self.eos_id, found.length))
        return (yield from write(prompt, self.codec, task.new_tokens))

    def prompt(self, item: Item, hint: str) -> Prompt:
        """Numbered passages, the question, the hint if there is one."""
        used = item.passages[: self.passages]
        ids = [*self.chat.before]
        dropped = 0
        if used:
            ids += self.codec.encode(PASSAGES)
        for number, passage in enumerate(used, 1):
            body, cut = passage_ids(self.codec, passage, self.passage_tokens)
            ids += [*self.codec.encode(f"[{number}] "), *body, *self.codec.encode("\n\n")]
            dropped += cut
        lead = QUESTION if used else ""
        told = f"\n\n{hint}" if hint else ""
        ids += [*self.codec.encode(f"{lead}{item.instruction}{told}"), *self.chat.after]
        return Prompt(item.instruction, tuple(ids), used, dropped)

    def as_dict(self) -> dict[str, Any]:
        """Settings and the texts of the prompt."""
        return {
            "kind": "untuned",
            "passages": self.passages,
            "passage_tokens": self.passage_tokens,
            "chat": self.chat.source,
            "prompt": [PASSAGES, QUESTION],
        }
