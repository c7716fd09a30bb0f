r"""Prompt layouts as data: how instruction, passage, history and reflection tokens become token ids. Pure.

Byte-exact layouts of the published checkpoints (arXiv 2310.11511 and its code): the prompt is
`### Instruction:\n{instruction}\n\n### Response:\n`; evidence follows as
`[Retrieval]<paragraph>{title}\n{text}</paragraph>`. Markers enter as ids, text enters through a `TextCodec`, so no
text can become a marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import (
    HFTextCodec,
    ReadOnlyTokenizer,
    TextCodec,
    decode_without,
)


class Turn(NamedTuple):
    """One turn of a conversation before the question: `user`, `assistant` or `system`, and what was said."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A prompt as text around its slots; slots are filled once, so braces in user text stay text.

    Attributes:
        name: what a command line calls it.
        before: text before the instruction.
        input: text between instruction and input, used only where there is an input.
        after: text before the response.
        task_input: text between a task instruction and its question inside the instruction slot.
        between: text between an exchange and the next one.
    """

    name: str
    before: str = "### Instruction:\n"
    input: str = "\n\n### Input:\n"
    after: str = "\n\n### Response:\n"
    task_input: str = "\n\n## Input:\n\n"
    between: str = "\n\n"

    def render(self, instruction: str, input_text: str = "") -> str:
        """Return the prompt as text."""
        if input_text:
            instruction += self.input + input_text
        return f"{self.before}{instruction}{self.after}"

    def turns(self, history: Sequence[Turn]) -> str:
        """Return earlier turns as text before the prompt: each user turn in its slot, each answer after it."""
        following = [*(turn.role for turn in history[1:]), "user"]
        pieces = []
        for turn, after in zip(history, following, strict=False):
            is_question = turn.role == "user"
            pieces.append(self.render(turn.text) if is_question else turn.text)
            if not (is_question and after == "assistant"):
                pieces.append(self.between)
        return "".join(pieces)

    def task(self, instruction: str, question: str) -> str:
        """Return a task instruction and its question joined as in the training data."""
        if not instruction:
            return question
        return f"{instruction}{self.task_input}{question}"


SELFRAG = Layout("selfrag")
"""Layout of the published checkpoints and of this project's training."""

_LLAMA2_SYSTEM = """\
You are a helpful, respectful and honest assistant. Always answer as helpfully as possible, while being safe. Your \
answers should not include any harmful, unethical, racist, sexist, toxic, dangerous, or illegal content. Please ensure \
that your responses are socially unbiased and positive in nature.

If a question does not make any sense, or is not factually coherent, explain why instead of answering something not \
correct. If you don't know the answer to a question, please don't share false information."""
INSTRUCTION_LAYOUTS = {
    layout.name: layout
    for layout in (
        SELFRAG,
        Layout(
            "alpaca",
            before="Below is an instruction that describes a task. Write a response that appropriately completes the"
            " request.\n\n### Instruction:\n",
            after="\n\n### Response:",
        ),
        Layout(
            "llama2-chat",
            before=f"[INST] <<SYS>>\n{_LLAMA2_SYSTEM}\n<</SYS>>\n\n",
            after=" [/INST]",
        ),
    )
}
"""Layouts of published instruction-tuned models, for baselines: Alpaca's, and Llama 2's with its system prompt."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A passage as ids between its markers."""

    ids: tuple[int, ...]  # `<paragraph>` .. `</paragraph>`, markers included.
    # tokens of the body cut to fit the budget; 0 if whole. Text far beyond the budget is not tokenised but counted as a
    # token for four characters.
    dropped_tokens: int = 0


def passage_ids(
    codec: TextCodec, passage: Passage, max_tokens: int
) -> tuple[tuple[int, ...], int]:
    r"""Ids of `{title}\n{text}`, cut at `max_tokens`, and how many were cut (see `Evidence.dropped_tokens`)."""
    # No prose has more than about 16 characters a token; far beyond the budget nothing need be read.
    text = f"{passage.title}\n{passage.text}"
    body = codec.encode(text[: 32 * max_tokens])
    unread = max(0, len(text) - 32 * max_tokens)
    kept = tuple(body[:max_tokens])
    return kept, len(body) - len(kept) + -(-unread // 4)


def check_question(question: object) -> None:
    """Refuse a question that is no text, or blank."""
    if not isinstance(question, str):
        raise UserError(f"the question must be text, not {type(question).__name__}")
    if not question.strip():
        raise UserError("the question is empty")


@dataclass(frozen=True, slots=True)
class Prompting:
    """Turns texts into ids for one tokenizer and one layout. Holds no state."""

    codec: TextCodec
    vocabulary: Vocabulary
    layout: Layout = SELFRAG

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, layout: Layout = SELFRAG) -> Prompting:
        """Return the prompting of a Hugging Face tokenizer.

        Raises:
            VocabularyError: it lacks reflection tokens or an EOS.
        """
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        return cls(HFTextCodec(tokenizer), vocabulary, layout)

    def prompt(
        self, instruction: str, input_text: str = "", history: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """BOS and the prompt up to where the response begins, earlier turns before it.

        Raises:
            UserError: the instruction or the input is not text, or the instruction is blank.
        """
        check_question(instruction)
        if not isinstance(input_text, str):
            raise UserError(f"the input must be text, not {type(input_text).__name__}")
        text = self.layout.turns(history) + self.layout.render(instruction, input_text)
        return (*self.codec.bos_ids, *self.codec.encode(text))

    def evidence(self, passage: Passage, max_tokens: int) -> Evidence:
        r"""`<paragraph>{title}\n{text}</paragraph>`; the body is cut at `max_tokens` ids, the markers never."""
        kept, dropped = passage_ids(self.codec, passage, max_tokens)
        return Evidence(
            (self.vocabulary.paragraph_open, *kept, self.vocabulary.paragraph_close),
            dropped,
        )

    def text(
        self, ids: tuple[int, ...], text_ids: tuple[int, ...] | None = None
    ) -> str:
        """Return the text of generated ids without reflection tokens and EOS; see `decode_without`.

        `text_ids` are those that are no such tokens, where they are known.
        """
        if text_ids is None:
            text_ids = tuple(self.vocabulary.text_ids(ids))
        if not text_ids:
            return ""
        control, end = self.vocabulary.control, len(ids)
        while ids[end - 1] in control:
            end -= 1
        if end - ids.index(text_ids[0]) == len(text_ids):
            return self.codec.decode(text_ids)  # nothing stands between them
        return decode_without(self.codec, ids, control)


_SLOT = "SELFRAGCONTENTSLOT"


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat template around one user message, as ids."""

    before: tuple[int, ...]  # up to the user's words
    after: tuple[int, ...]  # from there to where the answer begins
    source: str  # `chat_template`, or the name of the layout that stands in for it

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        codec: TextCodec,
        system: str = "",
        layout: str | None = None,
    ) -> Chat:
        """Read the template of a Hugging Face tokenizer, with a system prompt or without.

        `layout`, one of `INSTRUCTION_LAYOUTS`, takes the template's place; `selfrag` stands in where there is none.

        Raises:
            UserError: the template cannot be rendered, or does not keep the user's words as they are.
        """
        if layout or not getattr(tokenizer, "chat_template", None):
            words = INSTRUCTION_LAYOUTS[layout or SELFRAG.name]
            before_ids = codec.encode(words.before)
            after_ids = codec.encode(words.after)
            return cls((*codec.bos_ids, *before_ids), tuple(after_ids), words.name)
        message = []
        if system:
            message.append({"role": "system", "content": system})
        message.append({"role": "user", "content": _SLOT})
        # starts a child process, and few prompts need it
        from selfrag.chat_templates import (
            render_chat,
        )

        text = render_chat(tokenizer, message)
        before, slot, after = text.partition(_SLOT)
        if not slot or _SLOT in after:
            raise UserError(
                "the chat template of the model changes or repeats the user's words"
            )
        ids = ReadOnlyTokenizer(tokenizer, split_special_tokens=False).ids(
            (before, after)
        )
        return cls(tuple(ids[0]), tuple(ids[1]), "chat_template")
