"""What recorded prompts say about themselves: the conversation behind their turns, and where sentences were cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from retrieval.passage import Passage
from retrieval.splitting import SentenceFinder, Span
from selfrag.intrinsics.contract import Message, State
from selfrag.intrinsics.dialects.completion import CompletionCodec, System

_TAG = re.compile(r"<[rci]\d+> ")
_DATE = re.compile(r"Today's Date: (.+?)\.\n")
_DOCUMENT_ROLE = re.compile(r'document \{"document_id": "(.*)"\}')


def dated(codec: CompletionCodec, turns: Sequence[Mapping[str, Any]]) -> CompletionCodec:
    """The codec with the date and the system turn of a recorded prompt."""
    first = turns[0]["text"] if turns and turns[0]["role"] == "system" else None
    if first is None or (len(turns) == 1):
        return replace(codec, system=System.NONE)
    if not first:
        return replace(codec, system=System.EMPTY)
    date = _DATE.search(first)
    return replace(codec, date=date.group(1)) if date else codec


def state_of(codec: CompletionCodec, turns: Sequence[Mapping[str, Any]]) -> State:
    """The state behind recorded turns: without the head, the tags and what the dialect puts behind."""
    behind = len(codec.spec.turns)
    body = list(turns[: len(turns) - behind])
    if body and body[0]["role"] == "system" and (not body[0]["text"] or _DATE.search(body[0]["text"])):
        body = body[1:]
    passages: list[Passage] = []
    messages: list[Message] = []
    for turn in body:
        role = _DOCUMENT_ROLE.fullmatch(turn["role"])
        if role:
            passages.append(Passage(role.group(1), _untagged(turn["text"].removeprefix("\n"))))
        elif turn["role"] == "documents":
            texts = re.split(r"(?:^|\n\n)Document \d+\n", turn["text"])[1:]
            passages += [Passage(str(index), _untagged(text)) for index, text in enumerate(texts)]
        else:
            messages.append(Message(turn["role"], _untagged(turn["text"])))
    for turn, spec in zip(turns[len(turns) - behind :], codec.spec.turns, strict=True):
        found = _DOCUMENT_ROLE.fullmatch(turn["role"])
        if spec.role == "{document}" and found:
            passages.append(Passage(found.group(1), turn["text"].removeprefix("\n")))
    return State(tuple(messages), tuple(passages), _arguments(codec, turns[len(turns) - behind :]))


def _arguments(codec: CompletionCodec, turns: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for turn, spec in zip(turns, codec.spec.turns, strict=True):
        names = [name for name in spec.fields() if name != "query"]
        if names:
            pattern, seen = "", set[str]()
            for part in re.split(r"(\{\w+\})", spec.text):
                name = part[1:-1]
                if part.startswith("{") and name in names:
                    pattern += f"(?P={name})" if name in seen else f"(?P<{name}>.+?)"
                    seen.add(name)
                else:
                    pattern += re.escape(part)
            match = re.fullmatch(pattern, turn["text"], re.DOTALL)
            found |= match.groupdict() if match else {}
    return found


def _untagged(text: str) -> str:
    return _TAG.sub("", text)


def recorded_finder(texts: Iterable[str], fallback: SentenceFinder) -> SentenceFinder:
    """A splitter that cuts as recorded, where a text was recorded with tags.

    Args:
        texts: everything that was recorded.
        fallback: for texts that were not.
    """
    cuts: dict[str, list[str]] = {}
    for text in texts:
        for part in re.split(r"(?:^|\n\n)Document \d+\n", text):
            if _TAG.search(part):
                sentences = [piece.strip() for piece in _TAG.split(part) if piece.strip()]
                cuts["".join("".join(sentences).split())] = sentences

    def find(text: str) -> Sequence[Span]:
        sentences = cuts.get("".join(text.split()))
        if sentences is None:
            return fallback(text)
        spans, at = [], 0
        for sentence in sentences:
            begin = text.find(sentence, at)
            if begin < 0:
                return fallback(text)
            at = begin + len(sentence)
            spans.append((begin, at))
        return spans

    return find


def all_texts(value: Any) -> list[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for child in children for text in all_texts(child)]
