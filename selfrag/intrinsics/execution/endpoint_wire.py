"""The text routes of OpenAI-compatible servers: our calls as JSON, their replies as completions. Pure.

Such a server tokenises what it is sent. What a caller or a passage wrote is sent with its control-token look-alikes
broken up (`selfrag.untrusted.unmarked`), because nobody knows here which ones the model has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from selfrag.intrinsics.contract import ChatPrompt, Completion, Constraint, TextPrompt, TokenLogprob
from selfrag.intrinsics.execution.endpoint_config import Holding
from selfrag.untrusted import markers, unmarked

CHAT, TEXT = "/chat/completions", "/completions"

_RENDERED = ("tools", "functions", "chat_template_kwargs")
"""Fields of a caller's request, beside messages and documents, that a chat template shows."""


class BadReplyError(ValueError):
    """A reply without text; the message says what is wrong, in one line."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a server.

    Attributes:
        prompt: as the codec made it.
        max_tokens: most new tokens.
        begun: text with which the reply begins, written for the model.
        temperature: None leaves it to the server.
        constraint: of the text.
        top_logprobs: alternatives a token; 0 for no log-probabilities.
        adapter: name that takes the model's place.
    """

    prompt: TextPrompt | ChatPrompt
    max_tokens: int
    begun: str = ""
    temperature: float | None = 0.0
    constraint: Constraint | None = None
    top_logprobs: int = 0
    adapter: str | None = None

    @property
    def route(self) -> str:
        """Where it goes."""
        return TEXT if isinstance(self.prompt, TextPrompt) else CHAT


def body(call: Call, model: str, holding: Holding) -> dict[str, Any]:
    """The JSON of a call."""
    content: dict[str, Any] = {"model": call.adapter or model, "max_tokens": call.max_tokens}
    if call.temperature is not None:
        content["temperature"] = call.temperature
    if isinstance(call.prompt, TextPrompt):
        content["prompt"] = _text(call.prompt) + _begun(call.begun)
        if call.top_logprobs:
            content["logprobs"] = call.top_logprobs
    else:
        rendered = {key: _broken(value) for key, value in call.prompt.extra.items() if key in _RENDERED}
        content = {**call.prompt.extra, **rendered, **content, **_chat(call.prompt, call.begun, holding)}
        if call.top_logprobs:
            content |= {"logprobs": True, "top_logprobs": call.top_logprobs}
    return content | _held(call.constraint, holding)


def _chat(prompt: ChatPrompt, begun: str, holding: Holding) -> dict[str, Any]:
    own = markers(prompt.own)
    turns = [{"role": unmarked(m.role), "content": unmarked(m.content, own)} for m in prompt.messages]
    content: dict[str, Any] = {"messages": turns}
    if prompt.documents:
        content["documents"] = [_broken(document) for document in prompt.documents]
    if begun and holding is Holding.STRUCTURED:
        turns.append({"role": "assistant", "content": _begun(begun)})
        content |= {"add_generation_prompt": False, "continue_final_message": True}
    elif begun:
        asked = f"\n\nYour reply begins like this; write only what comes next, without repeating it:\n{_begun(begun)}"
        turns[-1] = {**turns[-1], "content": turns[-1]["content"] + asked}
    return content


def _text(prompt: TextPrompt) -> str:
    """Control pieces as they are; neighbouring text pieces are one text, so that halves in two of them do not join."""
    own = markers(prompt.own)
    runs = [(control, "".join(p.text for p in run)) for control, run in groupby(prompt.pieces, lambda p: p.control)]
    return "".join(text if control else unmarked(text, own) for control, text in runs)


def _begun(text: str) -> str:
    """The beginning of a reply, which may end with an open bracket of the codec's own."""
    return unmarked(text) if text.endswith(" ") else unmarked(text).removesuffix(" ")


def _broken(value: Any) -> Any:
    """A JSON value with every text in it `unmarked`, names of fields included."""
    if isinstance(value, str):
        return unmarked(value)
    if isinstance(value, Mapping):
        return {_broken(key): _broken(one) for key, one in value.items()}
    return [_broken(one) for one in value] if isinstance(value, list | tuple) else value


def _held(constraint: Constraint | None, holding: Holding) -> dict[str, Any]:
    if constraint is None or holding is Holding.NONE:
        return {}
    if holding is Holding.SCHEMA:
        if constraint.json_schema is None:
            return {}
        schema = {"name": "reply", "strict": True, "schema": dict(constraint.json_schema)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if constraint.json_schema is not None:
        return {"structured_outputs": {"json": dict(constraint.json_schema)}}
    if constraint.regex is not None:
        return {"structured_outputs": {"regex": constraint.regex}}
    return {"structured_outputs": {"choice": list(constraint.choice or ())}}


def parse(content: bytes, call: Call) -> Completion:
    """The completion in a reply.

    Raises:
        BadReplyError: it is not JSON, or has no text; nothing is ever filled in.
    """
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        raise BadReplyError(f"the reply is not JSON: {content[:80]!r}") from None
    match reply:
        case {"choices": [{"message": {"content": str() | None as text}} as choice, *_]} if call.route == CHAT:
            tokens = _chat_tokens(choice)
        case {"choices": [{"text": str(text)} as choice, *_]} if call.route == TEXT:
            tokens = _text_tokens(choice)
        case _:
            raise BadReplyError("the reply lacks choices[0] with its text")
    finish, usage = choice.get("finish_reason"), reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    return Completion(
        text or "",
        finish if isinstance(finish, str) else None,
        tokens,
        prompt_tokens=_count(counts, "prompt_tokens"),
        cached_tokens=_count(details if isinstance(details, dict) else {}, "cached_tokens"),
        generated_tokens=_count(counts, "completion_tokens"),
    )


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else 0


def _chat_tokens(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...] | None:
    match choice:
        case {"logprobs": {"content": [*rows]}} if rows:
            found = [_token(row) for row in rows]
            return tuple(token for token in found if token is not None) if all(found) else None
        case _:
            return None


def _token(row: Any) -> TokenLogprob | None:
    match row:
        case {"token": str(text), "logprob": float() | int() as value} if _sound(value):
            others = row.get("top_logprobs")
            top = [one for one in others if isinstance(one, dict)] if isinstance(others, list) else []
            pairs = [(one.get("token"), one.get("logprob")) for one in top]
            return TokenLogprob(text, float(value), _top(pairs))
        case _:
            return None


def _text_tokens(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...] | None:
    match choice:
        case {"logprobs": {"tokens": [*texts], "token_logprobs": [*values]} as given} if len(texts) == len(values):
            pass
        case _:
            return None
    others = given.get("top_logprobs")
    tops = others if isinstance(others, list) and len(others) == len(texts) else [None] * len(texts)
    found = []
    for text, value, top in zip(texts, values, tops, strict=True):
        if not isinstance(text, str) or not isinstance(value, float | int) or not _sound(value):
            return None
        found.append(TokenLogprob(text, float(value), _top(list(top.items()) if isinstance(top, dict) else [])))
    return tuple(found) or None


def _top(pairs: Sequence[tuple[Any, Any]]) -> tuple[tuple[str, float], ...]:
    """Alternatives that are log-probabilities, best first; servers write -9999 for what a constraint forbids."""
    kept = [
        (text, float(value))
        for text, value in pairs
        if isinstance(text, str) and isinstance(value, float | int) and _sound(value) and value > -9998
    ]
    return tuple(sorted(kept, key=lambda pair: -pair[1]))


def _sound(value: float) -> bool:
    return math.isfinite(value) and value <= 1e-3
