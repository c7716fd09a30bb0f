"""Requests of codecs as JSON for the text routes of OpenAI, and the replies read back. Pure.

Such a server tokenises what it is sent, and nobody here knows which control tokens the model has. So what a caller or
a passage wrote is sent with look-alikes of such tokens broken up (`selfrag.common.untrusted.unmarked`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any

from selfrag.common.untrusted import (
    markers,
    printable,
    replace_surrogates,
    shorten,
    unmarked,
)
from selfrag.decoding.policy import AnswerReason
from selfrag.engines.client import (
    LONGEST_MESSAGE,
    NO_LOGPROB,
    BadReplyError,
    as_logprob,
    json_of,
    label_schema,
    response_format,
    server_message,
    token_count,
)
from selfrag.judges.output import LabelLikelihood
from selfrag.judges.wire import (
    ChatPrompt,
    Completion,
    ModelRequest,
    Slot,
    TextPrompt,
    TokenLogprob,
)
from selfrag.reflection.requests import Constraint, ConstraintForm

CHAT, TEXT = "/chat/completions", "/completions"

STOPS = (".", "!", "?", "\n")
"""Texts at which a sentence may end; servers take four at most. Whoever asked for a sentence reads where it does."""


class ConstraintMode(StrEnum):
    """How an endpoint is made to hold to a constraint."""

    AUTO = "auto"  # the first of the others that it takes and obeys
    STRUCTURED = "structured_outputs"  # vLLM: schema, pattern or choice; replies can be begun for the model
    SCHEMA = "response_format"  # OpenAI: a JSON schema
    NONE = "none"  # nothing but the prompt; replies are read as they come


class Continuation(StrEnum):
    """How an endpoint is made to go on with a reply that has begun."""

    AUTO = "auto"  # the first of the others that it takes and obeys
    VLLM = "vllm"  # by its fields; it also ends a text after a stop string, which stays in the text. Never guessed
    FIELDS = "continue_final_message"  # by these fields, on other servers
    LAST_TURN = "assistant"  # llama.cpp, Ollama and others: a last turn of the assistant is continued
    COMPLETIONS = "completions"  # a server without a route for chats: the conversation is one text
    NONE = "none"  # it writes whole replies


_RENDERED = {"tools", "functions", "chat_template_kwargs"}
"""Fields of a caller's request, beside messages and documents, that a chat template shows."""


def route_of(request: ModelRequest, continuation: Continuation) -> str:
    """Return the route that a request is sent to."""
    if continuation is Continuation.COMPLETIONS:
        return TEXT
    return TEXT if isinstance(request.prompt, TextPrompt) else CHAT


def body(
    request: ModelRequest,
    model: str,
    constraint_mode: ConstraintMode,
    beginning: str = "",
    continuation: Continuation = Continuation.NONE,
) -> dict[str, Any]:
    """Return the JSON that asks for the text of a request.

    Args:
        request: what is asked.
        model: name of the model there; an adapter takes its place.
        constraint_mode: how its constraint is sent.
        beginning: how the reply begins, written for the model.
        continuation: how the server is made to go on from there; where it cannot, the model is asked to.
    """
    content: dict[str, Any] = {
        "model": request.adapter or model,
        "max_tokens": request.max_tokens,
    }
    if request.temperature is not None:
        content["temperature"] = request.temperature
    if request.seed is not None:
        content["seed"] = request.seed
    if request.sentence and continuation is Continuation.VLLM:
        content |= {"stop": list(STOPS), "include_stop_str_in_output": True}
    content |= _constraint_fields(request.constraint, constraint_mode)
    top = request.top_logprobs
    prompt, reply = request.prompt, _safe_beginning(beginning)
    if isinstance(prompt, TextPrompt) or continuation is Continuation.COMPLETIONS:
        content["prompt"] = _text(prompt) + reply
        if top:
            content["logprobs"] = top
        return content
    fields = dict(prompt.extra)
    for name in fields.keys() & _RENDERED:
        fields[name] = _harmless(fields[name])
    fields |= content
    fields |= _chat(prompt, reply, continuation)
    if top:
        fields |= {"logprobs": True, "top_logprobs": top}
    return fields


def _chat(
    prompt: ChatPrompt, beginning: str, continuation: Continuation
) -> dict[str, Any]:
    known = markers(prompt.own)
    turns = [
        {"role": unmarked(turn.role), "content": unmarked(turn.content, known)}
        for turn in prompt.messages
    ]
    content: dict[str, Any] = {"messages": turns}
    if prompt.documents:
        content["documents"] = _harmless(prompt.documents)
    if not beginning:
        return content
    if continuation in (Continuation.VLLM, Continuation.FIELDS, Continuation.LAST_TURN):
        turns.append({"role": "assistant", "content": beginning})
        if continuation is not Continuation.LAST_TURN:
            content |= {"add_generation_prompt": False, "continue_final_message": True}
        return content
    task = (
        "Your reply begins like this; write only what comes next, without repeating it:"
    )
    turns[-1]["content"] += f"\n\n{task}\n{beginning}"
    return content


def _text(prompt: TextPrompt | ChatPrompt) -> str:
    """Return a prompt as one text; neighbouring text pieces are joined first, so that halves of a marker are seen."""
    known = markers(prompt.own)
    if isinstance(prompt, ChatPrompt):
        turns = []
        for turn in prompt.messages:
            speaker = unmarked(turn.role).capitalize()
            turns.append(f"{speaker}: {unmarked(turn.content, known)}")
        return "\n\n".join([*turns, "Assistant:"])
    texts = []
    for is_control, pieces in groupby(prompt.pieces, lambda piece: piece.control):
        text = "".join([piece.text for piece in pieces])
        if not is_control:
            text = unmarked(text, known)
        texts.append(text)
    return "".join(texts)


def _safe_beginning(text: str) -> str:
    """Return the beginning of a reply, which may end with an open bracket of the codec's own."""
    safe = unmarked(text)
    if not text.endswith(" "):
        safe = safe.removesuffix(" ")
    return safe


def _harmless(value: Any) -> Any:
    """Return a JSON value with every text in it `unmarked`, names of fields included."""
    if isinstance(value, str):
        return unmarked(value)
    if isinstance(value, Mapping):
        return {_harmless(key): _harmless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_harmless(item) for item in value]
    return value


def _constraint_fields(
    constraint: Constraint | None, mode: ConstraintMode
) -> dict[str, Any]:
    if constraint is None or mode is ConstraintMode.NONE:
        return {}
    if mode is not ConstraintMode.SCHEMA:
        return {"structured_outputs": constraint.as_structured_outputs()}
    if constraint.form is ConstraintForm.JSON:
        return response_format("reply", constraint.value)
    return {}


def parse(content: bytes, route: str) -> Completion:
    """Return the completion in a reply of a route; nothing is ever filled in.

    Raises:
        BadReplyError: the reply has no message.
    """
    reply = json_of(content)
    match reply:
        case {"choices": [{"message": dict() as message} as choice, *_]} if (
            route == CHAT
        ):
            pass
        case {"choices": [{"text": text} as choice, *_]} if route == TEXT:
            message = {"content": text}
        case {"error": dict() | str()}:
            raise BadReplyError(f"the reply is an error: {server_message(content)}")
        case _:
            raise BadReplyError("the reply lacks choices[0] with its text")
    written = _read_message(message)
    finish = None
    match choice:
        case {"finish_reason": "stop", "stop_reason": str()}:
            finish = "sentence"  # vLLM names the stop string
        case {"finish_reason": str(reason)}:
            word = reason.casefold()
            finish = _FINISH.get(word, word)
    is_blank = not written.text.strip()
    withheld = ""
    if is_blank and written.refusal:
        withheld = (
            f"{AnswerReason.REFUSED}: {shorten(written.refusal, LONGEST_MESSAGE)}"
        )
    elif finish in _FILTERED:
        withheld = "the server's content filter held back the reply or its end"
        if is_blank:
            withheld = f"{AnswerReason.REFUSED}: {withheld}"
    elif is_blank and written.calls_tool:
        withheld = "the model called a tool in place of an answer"
    usage, details = reply.get("usage"), None
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
    return Completion(
        replace_surrogates(written.text),
        finish,
        _tokens(choice),
        prompt_tokens=token_count(usage, "prompt_tokens"),
        cached_tokens=token_count(details, "cached_tokens"),
        generated_tokens=token_count(usage, "completion_tokens"),
        reasoning=replace_surrogates(written.reasoning),
        withheld=printable(" ".join(withheld.split())),
    )


_FINISH: Mapping[str, str] = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_length": "length",
}
"""Words of servers for what OpenAI calls `stop` and `length`."""
_FILTERED = frozenset({"content_filter", "safety", "sensitive"})


@dataclass(slots=True)
class _Message:
    """The texts of a reply, by kind."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls_tool: bool = False


def _read_message(message: Mapping[str, Any]) -> _Message:
    """Return the texts of a message, whose content is a text or a list of parts.

    Raises:
        BadReplyError: it has nothing that a message may have.
    """
    known = ("content", "refusal", "tool_calls", "function_call", *_REASONING)
    if not any(name in message for name in known):
        raise BadReplyError("the reply lacks choices[0] with its text")
    content = message.get("content")
    parts: list[Any] = content if isinstance(content, list) else [content]
    texts, thoughts, refusals = [], [], []
    for part in parts:
        match part:
            case str():
                texts.append(part)
            case {"type": "thinking" | "reasoning" as kind}:
                thoughts.append(_joined(part.get(kind) or part.get("text")))
            case {"type": "refusal"}:
                refusals.append(_joined(part.get("refusal")))
            case {"text": words}:
                texts.append(_joined(words))
    for name in _REASONING:
        if not any(thoughts):
            thoughts.append(_joined(message.get(name)))
    refusals.append(_joined(message.get("refusal")))
    calls_tool = bool(message.get("tool_calls") or message.get("function_call"))
    return _Message("".join(texts), "".join(thoughts), "".join(refusals), calls_tool)


_REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields in which servers give reasoning."""


def _joined(value: Any) -> str:
    """Return a text, or the texts of a list of parts; empty for anything else."""
    texts = []
    for part in value if isinstance(value, list) else [value]:
        match part:
            case str(text) | {"text": str(text)}:
                texts.append(text)
    return "".join(texts)


def _tokens(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...] | None:
    """Return the tokens of a reply; None where there are none, or any of them cannot be read."""
    tokens = []
    for row in _rows(choice):
        token = _token(row)
        if token is None:
            return None
        tokens.append(token)
    return tuple(tokens) or None


def _rows(choice: Mapping[str, Any]) -> Sequence[Any]:
    """Return one object a token, as `/chat/completions` has them; `/completions` has parallel lists."""
    match choice:
        case {"logprobs": {"content": [*rows]}}:
            return rows
        case {
            "logprobs": {"tokens": [*texts], "token_logprobs": [*values]} as logprobs
        } if len(texts) == len(values):
            tops = logprobs.get("top_logprobs")
        case _:
            return ()
    if not isinstance(tops, list) or len(tops) != len(texts):
        tops = [None] * len(texts)
    rows = []
    for text, value, top in zip(texts, values, tops, strict=True):
        listed = []
        if isinstance(top, dict):
            for name, logprob in top.items():
                listed.append({"token": name, "logprob": logprob})
        rows.append({"token": text, "logprob": value, "top_logprobs": listed})
    return rows


def _token(row: Any) -> TokenLogprob | None:
    match row:
        case {"token": str(text), "logprob": value, **others} if (
            logprob := as_logprob(value)
        ) is not None:
            alternatives = _alternatives(others.get("top_logprobs"))
            return TokenLogprob(replace_surrogates(text), logprob, alternatives)
        case _:
            return None


def _alternatives(rows: Any) -> tuple[tuple[str, float], ...]:
    """Return those that have a log-probability, best first; servers write -9999 for what a constraint forbids."""
    if not isinstance(rows, list):
        return ()
    pairs = []
    for row in rows:
        match row:
            case {"token": str(text), "logprob": value}:
                logprob = as_logprob(value)
                if logprob is not None and logprob > NO_LOGPROB:
                    pairs.append((text, logprob))
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))


_FIELD = "label"


def label_request(
    slot: Slot, request: ModelRequest, most: int, constraint_mode: ConstraintMode
) -> ModelRequest:
    """Return the request that has a slot's label written after its prefill, with up to `most` alternatives a token."""
    longest = max(map(len, slot.surfaces))
    labelling = replace(
        request,
        max_tokens=longest + 8,  # a token is a character at least
        temperature=0.0,
        constraint=Constraint.choice(slot.surfaces),
        top_logprobs=most,
        sentence=False,
    )
    if constraint_mode is not ConstraintMode.SCHEMA:
        return labelling
    words = [surface.strip() for surface in slot.surfaces]
    return replace(
        labelling,
        max_tokens=longest + 32,
        constraint=Constraint.json(label_schema(words)),
    )


def slot_logprobs(slot: Slot, completion: Completion) -> tuple[float, ...] | None:
    """Return the natural log-probability of each surface, read off the alternatives; None where nothing says it.

    Alternatives that were not returned lower the coverage. Without any, a label that was written is taken as certain.
    """
    text = completion.text
    labels = [surface.strip() for surface in slot.surfaces]
    begin = _label_begin(text)
    if begin is None:
        return None
    index = _written_label(text[begin:], labels)
    read = None
    if completion.tokens and any(token.top for token in completion.tokens):
        read = LabelLikelihood.read(completion.tokens, text, (begin, len(text)), labels)
    if read is None and index is not None:
        read = LabelLikelihood.certain(index, len(labels))
    if read is None:
        return None
    # The label that was written is all that is known for certain; a coverage of 1 says so.
    logprobs = []
    for share in read.distribution:
        p = share * read.coverage
        logprobs.append(math.log(p) if p > 0 else -math.inf)
    return tuple(logprobs)


def _label_begin(text: str) -> int | None:
    """Return where the label stands: at the beginning, or as the value of the one field."""
    bare = text.lstrip()
    if not bare:
        return None
    if not bare.startswith("{"):
        return len(text) - len(bare)
    mark = json.dumps(_FIELD)
    after = text.find(mark)
    if after < 0:
        return None
    quote = text.find('"', text.find(":", after + len(mark)))
    return None if quote < 0 else quote + 1


def _written_label(text: str, labels: Sequence[str]) -> int | None:
    """Return the index of the label that a text begins with: `rel` is not what `relevant` says."""
    written = text.casefold()
    # Longer labels first: none is the beginning of another, but stripped ones may be.
    for index in sorted(range(len(labels)), key=lambda index: -len(labels[index])):
        label = labels[index].casefold()
        after = written[len(label) :]
        if written.startswith(label) and not after[:1].isalnum():
            return index
    return None


_JSON_BEGINS = ("", *'{["-0123456789tfn')


def follows(
    completion: Completion, constraint: Constraint | None, mode: ConstraintMode
) -> bool:
    """Return whether a reply follows its constraint, as far as it was sent and the reply is whole."""
    if constraint is None or mode is ConstraintMode.NONE:
        return True
    if mode is ConstraintMode.SCHEMA and constraint.form is not ConstraintForm.JSON:
        return True
    if completion.finish == "length" and constraint.form is not ConstraintForm.CHOICE:
        return (
            constraint.form is not ConstraintForm.JSON
            or completion.text.lstrip()[:1] in _JSON_BEGINS
        )
    return obeys(completion.text, constraint)


def obeys(text: str, constraint: Constraint) -> bool:
    """Return whether the whole text is what the constraint allows; white space around a choice does not matter."""
    import jsonschema

    if constraint.form is ConstraintForm.CHOICE:
        return text.strip() in [choice.strip() for choice in constraint.value]
    if constraint.form is ConstraintForm.REGEX:
        return re.fullmatch(constraint.value, text) is not None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(jsonschema.Draft202012Validator(constraint.value).is_valid(value))
