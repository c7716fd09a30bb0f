"""Prompts and replies of a request as token ids, the same for inference and training.

Text of callers, passages and models is tokenised apart from the template, so it never becomes a control token. A chat
template gets a mark in place of each text; its change to the mark shows its change to the text. A reply is tokenised in
one piece, so a label has the ids that it has in ordinary text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from selfrag.chat_templates import render_chat
from selfrag.common.errors import UserError
from selfrag.decoding.sentence_ends import STOPS
from selfrag.judges.reasoning import close_reasoning
from selfrag.judges.wire import ChatPrompt, PromptPiece, Slot, TextPrompt
from selfrag.reflection.inputs import ROLES
from selfrag.tokenization import (
    HFTextCodec,
    ReadOnlyTokenizer,
    TextCodec,
    common_prefix,
)

# private use: no template has them
_MARK = re.compile("\ue000([0-9]+)([^\ue000\ue001]*)\ue001")
_WORD = re.compile(r"\s*<[a-z_]+>")
_PROBE = 'aA"<'
"""Inside a mark: comes out changed where a template changes letters, quotes or brackets."""
_AS_JSON = json.dumps(_PROBE)[1:-1]
_SHOWN = ("content", "text", "title")
"""Fields that a template must show; an id may be left out, or shown twice."""


@dataclass(frozen=True)
class Renderer:
    """Renders for one tokenizer."""

    tokenizer: Any  # of Hugging Face, with a chat template where chat prompts are to be rendered. Tokenises nothing.
    text: TextCodec  # safe tokenisation with it
    end_id: int  # ends a turn of the assistant
    # tokenisation of the template's own text, in which control tokens are meant
    trusted: ReadOnlyTokenizer | None = None

    @classmethod
    def of(cls, tokenizer: Any) -> Renderer:
        """Return a renderer for a tokenizer, which must have an EOS token."""
        if tokenizer.eos_token_id is None:
            raise UserError(
                "the tokenizer has no EOS token; set tokenizer.eos_token first"
            )
        trusted = ReadOnlyTokenizer(tokenizer, split_special_tokens=False)
        return cls(
            tokenizer, HFTextCodec(tokenizer), int(tokenizer.eos_token_id), trusted
        )

    @cached_property
    def sentence_stops(self) -> tuple[int, ...]:
        """Return the ids after which a sentence may end; none of a tokenizer whose vocabulary is not known."""
        return (
            self.text.ending_with(STOPS) if isinstance(self.text, HFTextCodec) else ()
        )

    def prompt(self, prompt: TextPrompt | ChatPrompt) -> tuple[int, ...]:
        """Return the ids of a prompt, up to where the reply begins; refuse a chat template that changes texts."""
        pieces = prompt.pieces if isinstance(prompt, TextPrompt) else self._chat(prompt)
        ids: list[int] = (
            list(self.text.bos_ids) if isinstance(prompt, TextPrompt) else []
        )
        for control, run in groupby(pieces, key=lambda piece: piece.control):
            text = "".join(piece.text for piece in run)
            ids += self.control(text) if control else self.text.encode(text)
        return tuple(ids)

    def control(self, text: str) -> list[int]:
        """Return ids of text that a template wrote, control tokens included. Never call it with the text of others."""
        if self.trusted is None:
            raise ValueError(
                "a renderer without `trusted` has no control tokens; make it by Renderer.of"
            )
        return self.trusted.ids([text])[0]

    def reply(self, prefill: str, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids of a reply: those of the prefill, and those after it.

        Where a token crosses the border, it belongs to the second part.
        """
        ids = tuple(self.text.encode(prefill + text))
        border = common_prefix([self.text.encode(prefill), ids])
        return ids[:border], ids[border:]

    def slot(self, slot: Slot) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Return the trie of a slot's surfaces, tokenised behind its prefill; refuse surfaces that have the same ids.

        Returns:
            The ids that all surfaces have in common, the prefill as a rule; and those of each surface after them, none
            empty, none the beginning of another.
        """
        replies = [
            tuple(self.text.encode(slot.prefill + surface)) for surface in slot.surfaces
        ]
        border = common_prefix(replies)
        if len(replies) == 1:  # one surface alone is scored from its prefill on
            border = len(self.reply(slot.prefill, slot.surfaces[0])[0])
        paths = tuple([ids[border:] for ids in replies])
        if len(set(paths)) != len(paths) or not all(paths):
            raise UserError(
                f"this tokenizer cannot tell the labels apart: {', '.join(map(repr, slot.surfaces[:8]))}"
            )
        return replies[0][:border], paths

    def _chat(self, prompt: ChatPrompt) -> list[PromptPiece]:
        """Return the template's own text as control pieces, what it was given as text pieces."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                "the tokenizer has no chat template; give a chat model, or a dialect that renders prompts"
            )
        marks = _Marks()
        # A template may look for the word in brackets that a codec's own turn begins with; no other text shows it one.
        word = _WORD.match(prompt.own)
        last_begin = "" if word is None else word.group()
        messages = []
        for number, message in enumerate(prompt.messages, 1):
            role = marks.role(message.role)
            begin = last_begin if number == len(prompt.messages) else ""
            messages.append(
                {"role": role, "content": marks.put(message.content, begin=begin)}
            )
        options: dict[str, Any] = {}
        if prompt.documents:
            options["documents"] = [
                marks.document(document) for document in prompt.documents
            ]
        settings = prompt.extra.get("chat_template_kwargs") or {}
        if "enable_thinking" in settings:
            options["enable_thinking"] = bool(settings["enable_thinking"])
        adapter = settings.get("adapter_name")
        if adapter is None:
            rendered = render_chat(self.tokenizer, messages, **options)
            return marks.filled(close_reasoning(rendered))
        rendered = render_chat(
            self.tokenizer, messages, **options, adapter_name=adapter
        )
        if rendered == render_chat(self.tokenizer, messages, **options):
            raise UserError(
                f"the model's chat template knows no adapter {adapter!r:.60}; give a Granite Switch checkpoint"
            )
        return marks.filled(rendered)


class _MarkedText(NamedTuple):
    """A text for which a mark stands."""

    shown: str  # its beginning that the template sees
    space: str  # white space before the mark
    core: str  # what the mark stands for
    after: str  # white space after the mark


class _Marks:
    """The texts of one prompt, and the marks that stand for them while a template is rendered."""

    def __init__(self) -> None:
        self._texts: list[_MarkedText] = []
        self._needed: list[int] = []

    def put(self, text: str, *, needed: bool = True, begin: str = "") -> str:
        """Return the mark of a text; blank text has no mark.

        White space around the text stays, so that a template can strip it. So does `begin`, where the text begins with
        it.
        """
        marked = text.removeprefix(begin)
        core = marked.strip()
        if not core:
            return text
        space, _, after = marked.partition(core)
        number = len(self._texts)
        if needed:
            self._needed.append(number)
        shown = text[: len(text) - len(marked)]
        self._texts.append(_MarkedText(shown, space, core, after))
        return f"{shown}{space}\ue000{number}{_PROBE}\ue001{after}"

    def role(self, role: str) -> str:
        """Return a known role as it is, since templates compare roles; of any other one only a known first word."""
        if role in ROLES:
            return role
        word, space, number = role.partition(" ")
        if word == "document":
            return f"{word}{space}{self.put(number, needed=False)}"
        return self.put(role, needed=False)

    def document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document with a mark for every text in it; fields are plain names, to be told from text."""
        marked: dict[str, Any] = {}
        for key, value in document.items():
            if not (isinstance(key, str) and key.isascii() and key.isidentifier()):
                raise UserError(
                    f"a document has the field {key!r:.60}; fields are plain names such as text, title, doc_id"
                )
            if value is not None and not isinstance(value, bool | int | float):
                text = (
                    value if isinstance(value, str) else json.dumps(value, default=str)
                )
                value = self.put(text, needed=key in _SHOWN)
            marked[key] = value
        return marked

    def filled(self, rendered: str) -> list[PromptPiece]:
        """Return what a template made, with the texts in the places of their marks; only JSON may have changed them."""
        if set("\ue000\ue001") & set(_MARK.sub("", rendered)):
            raise UserError(
                "the model's chat template changes what it is given; use a dialect that renders"
            )
        template, *parts = _MARK.split(rendered)
        pieces = []
        used = []
        for number, probe, following in zip(
            parts[::3], parts[1::3], parts[2::3], strict=True
        ):
            if probe not in (_PROBE, _AS_JSON):
                raise UserError(
                    "the model's chat template changes what it is given; use a dialect that renders"
                )
            shown, space, core, after = self._texts[int(number)]
            # What the template has left of what it was shown, and of white space, belongs to the text again.
            before = shown + space
            while before and not template.endswith(before):
                before = before[1:] if len(before) > len(space) else ""
            if not following.startswith(after):
                after = ""
            if probe == _AS_JSON:
                core = json.dumps(core, ensure_ascii=False)[1:-1]
            pieces += [
                PromptPiece(template.removesuffix(before), control=True),
                PromptPiece(f"{before}{core}{after}"),
            ]
            used.append(int(number))
            template = following.removeprefix(after)
        pieces.append(PromptPiece(template, control=True))
        if sorted(number for number in used if number in self._needed) != self._needed:
            raise UserError(
                "the model's chat template drops or repeats what it is given; use a dialect that renders"
            )
        return [piece for piece in pieces if piece.text]
