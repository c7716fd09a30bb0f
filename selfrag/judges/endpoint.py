"""`EndpointExecutor`: requests of codecs on any OpenAI-compatible server, with its adapters or with prompts alone.

Such a server tokenises what it is sent, and nobody here knows which control tokens the model has. So what a caller or
a passage wrote is sent with look-alikes of such tokens broken up (`selfrag.common.untrusted.unmarked`). Labels are
less exact than on an engine: a `vllm serve` of your own is better driven by `EngineExecutor` over the http engine.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Any

from anyio.from_thread import start_blocking_portal

from selfrag.common.checks import whole
from selfrag.common.errors import EngineError
from selfrag.common.untrusted import markers, unmarked
from selfrag.engines.client import (
    REFUSED,
    Adherence,
    BadReplyError,
    Client,
    ServerConfig,
    ServerTraits,
    json_of,
    label_schema,
    response_format,
    token_count,
)
from selfrag.judges.output import certain, likelihood
from selfrag.judges.wire import ChatPrompt, Completion, Executor, ModelRequest, Slot, TextPrompt, TokenLogprob
from selfrag.reflection.requests import Constraint, ConstraintForm, External, ExternalResult, Failed, Steps, failure_of


class ConstraintMode(StrEnum):
    """How an endpoint is made to hold to a constraint."""

    AUTO = "auto"  # the first of the others that it takes and obeys
    STRUCTURED = "structured_outputs"  # vLLM: schema, pattern or choice; replies can be begun for the model
    SCHEMA = "response_format"  # OpenAI: a JSON schema
    NONE = "none"  # nothing but the prompt; replies are read as they come


@dataclass(frozen=True, slots=True)
class EndpointConfig(ServerConfig):
    """How to reach an endpoint; its `url` is such as `http://127.0.0.1:8000/v1`, without a path `/v1` is added."""

    model: str  # its name there; a request's adapter takes its place, as `vllm serve --lora-modules` has it
    constraint_mode: ConstraintMode = ConstraintMode.AUTO  # how constraints are sent
    top_logprobs: int = 20  # most alternatives that the endpoint returns a token; 0 if it returns none

    def __post_init__(self) -> None:
        ServerConfig.__post_init__(self)
        if not self.model.strip():
            raise EngineError("the name of the model is empty; give the name that the endpoint knows")
        whole("top_logprobs", self.top_logprobs, 0, 20)


CHAT, TEXT = "/chat/completions", "/completions"

_RENDERED = ("tools", "functions", "chat_template_kwargs")
"""Fields of a caller's request, beside messages and documents, that a chat template shows."""


def body(request: ModelRequest, model: str, constraint_mode: ConstraintMode, begun: str = "") -> dict[str, Any]:
    """The JSON that asks for the text of a request; `begun` is how the reply begins, written for the model."""
    prompt, most = request.prompt, request.top_logprobs
    content: dict[str, Any] = {"model": request.adapter or model, "max_tokens": request.max_tokens}
    if request.temperature is not None:
        content["temperature"] = request.temperature
    if isinstance(prompt, TextPrompt):
        content["prompt"] = _text(prompt) + _begun(begun)
        if most:
            content["logprobs"] = most
    else:
        rendered = {key: _broken(value) for key, value in prompt.extra.items() if key in _RENDERED}
        content = {**prompt.extra, **rendered, **content, **_chat(prompt, begun, constraint_mode)}
        if most:
            content |= {"logprobs": True, "top_logprobs": most}
    return content | _constraint_fields(request.constraint, constraint_mode)


def _chat(prompt: ChatPrompt, begun: str, constraint_mode: ConstraintMode) -> dict[str, Any]:
    own = markers(prompt.own)
    turns = [{"role": unmarked(m.role), "content": unmarked(m.content, own)} for m in prompt.messages]
    content: dict[str, Any] = {"messages": turns}
    if prompt.documents:
        content["documents"] = [_broken(document) for document in prompt.documents]
    if begun and constraint_mode is ConstraintMode.STRUCTURED:
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


def _constraint_fields(constraint: Constraint | None, mode: ConstraintMode) -> dict[str, Any]:
    if constraint is None or mode is ConstraintMode.NONE:
        return {}
    if mode is not ConstraintMode.SCHEMA:
        return {"structured_outputs": constraint.as_structured_outputs()}
    return response_format("reply", constraint.value) if constraint.form is ConstraintForm.JSON else {}


def parse(content: bytes, route: str) -> Completion:
    """The completion in a reply of a route; a `BadReplyError` where it has no text, and nothing is ever filled in."""
    reply = json_of(content)
    match reply:
        case {"choices": [{"message": {"content": str() | None as text}} as choice, *_]} if route == CHAT:
            pass
        case {"choices": [{"text": str(text)} as choice, *_]} if route == TEXT:
            pass
        case _:
            raise BadReplyError("the reply lacks choices[0] with its text")
    finish, usage = choice.get("finish_reason"), reply.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return Completion(
        text or "",
        finish if isinstance(finish, str) else None,
        _tokens(choice),
        prompt_tokens=token_count(usage, "prompt_tokens"),
        cached_tokens=token_count(details, "cached_tokens"),
        generated_tokens=token_count(usage, "completion_tokens"),
    )


def _tokens(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...] | None:
    found = [_token(row) for row in _rows(choice)]
    return tuple(token for token in found if token is not None) if found and all(found) else None


def _rows(choice: Mapping[str, Any]) -> list[Any]:
    """The tokens of a reply, one object each, as `/chat/completions` has them; `/completions` has parallel lists."""
    match choice:
        case {"logprobs": {"content": [*rows]}}:
            return rows
        case {"logprobs": {"tokens": [*texts], "token_logprobs": [*values]} as given} if len(texts) == len(values):
            others = given.get("top_logprobs")
            tops = others if isinstance(others, list) and len(others) == len(texts) else [None] * len(texts)
            pairs = [list(top.items()) if isinstance(top, dict) else [] for top in tops]
            listed = [[{"token": text, "logprob": value} for text, value in top] for top in pairs]
            zipped = zip(texts, values, listed, strict=True)
            return [{"token": text, "logprob": value, "top_logprobs": top} for text, value, top in zipped]
        case _:
            return []


def _token(row: Any) -> TokenLogprob | None:
    match row:
        case {"token": str(text), "logprob": float() | int() as value} if _sound(value):
            others = row.get("top_logprobs")
            top = [one for one in others if isinstance(one, dict)] if isinstance(others, list) else []
            pairs = [(one.get("token"), one.get("logprob")) for one in top]
            return TokenLogprob(text, float(value), _top(pairs))
        case _:
            return None


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


_FIELD = "label"


def asked_for(slot: Slot, request: ModelRequest, most: int, constraint_mode: ConstraintMode) -> ModelRequest:
    """The request that has a slot's label written after its prefill, with up to `most` alternatives a token."""
    words = [surface.strip() for surface in slot.surfaces]
    longest = max(map(len, slot.surfaces))
    made = replace(
        request,
        max_tokens=longest + 8,  # a token is a character at least
        temperature=0.0,
        constraint=Constraint.choice(slot.surfaces),
        top_logprobs=most,
    )
    if constraint_mode is not ConstraintMode.SCHEMA:
        return made
    return replace(made, max_tokens=longest + 32, constraint=Constraint.json(label_schema(words)))


def slot_logprobs(slot: Slot, completion: Completion) -> tuple[float, ...] | None:
    """Natural log-probability of each surface, read off the alternatives; None if what was written is no label.

    Alternatives that were not returned lower the coverage; without any, the written label is taken as certain.
    """
    text = completion.text
    forms = [surface.strip() for surface in slot.surfaces]
    begin = _begin(text)
    if begin is None:
        return None
    # Longer labels first: none is the beginning of another, but stripped ones may be.
    order = sorted(range(len(forms)), key=lambda index: -len(forms[index]))
    rest = text[begin:].casefold()
    index = next((i for i in order if rest.startswith(forms[i].casefold()) and _ends(rest, len(forms[i]))), None)
    if index is None:
        return None
    found = None
    if completion.tokens and any(token.top for token in completion.tokens):
        found = likelihood(completion.tokens, text, (begin, begin + len(forms[index])), forms)
    if found is None:
        found = certain(index, len(forms))
    # The label that was written is all that is known for certain; a coverage of 1 says so.
    return tuple(math.log(p * found.coverage) if p > 0 else -math.inf for p in found.distribution)


def _begin(text: str) -> int | None:
    """Where the label stands: at the beginning, or as the value of the one field."""
    bare = text.lstrip()
    if not bare:
        return None
    if not bare.startswith("{"):
        return len(text) - len(bare)
    mark = json.dumps(_FIELD)
    after = text.find(mark)
    quote = -1 if after < 0 else text.find('"', text.find(":", after + len(mark)))
    return None if quote < 0 else quote + 1


def _ends(text: str, size: int) -> bool:
    """Whether the label stops there: `rel` is not what `relevant` says."""
    return size == len(text) or not text[size].isalnum()


HINT = "start it, or correct the URL"
_JSON_BEGINS = ("", *'{["-0123456789tfn')

_MODES = (ConstraintMode.STRUCTURED, ConstraintMode.SCHEMA, ConstraintMode.NONE)


class EndpointExecutor(Executor):
    """An `Executor` on a server, which is asked beside the engine of a decoder.

    How the server is held to constraints is found out by the first call that has one.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        mode = None if config.constraint_mode is ConstraintMode.AUTO else config.constraint_mode
        self._traits = ServerTraits(mode=mode)

    @property
    def constraint_mode(self) -> ConstraintMode:
        """How constraints are sent; `AUTO` until a request with one was answered."""
        return ConstraintMode(self._traits.mode or ConstraintMode.AUTO)

    def steps(self, requests: Sequence[ModelRequest]) -> Steps[list[Completion | Failed]]:
        """Return the results of one batch. Requests and slots are sent side by side."""
        results = yield [External(self._serve, request, self.config.url) for request in requests]
        return [one.value if isinstance(one, ExternalResult) else Failed(failure_of(one)) for one in results]

    def _serve(self, requests: Sequence[ModelRequest]) -> list[Completion | Failed]:
        # The event loop has a thread of its own, since a notebook's is running already.
        with start_blocking_portal() as portal:
            return portal.call(self._run, requests)

    async def _run(self, requests: Sequence[ModelRequest]) -> list[Completion | Failed]:
        async with Client(self.config, HINT, self._traits) as client:
            connection = _Connection(self, client)
            return list(await asyncio.gather(*(connection.request(request) for request in requests)))


class _Connection:
    """The calls of one `run`."""

    def __init__(self, owner: EndpointExecutor, client: Client) -> None:
        self._owner, self._client = owner, client
        self._slots = asyncio.Semaphore(owner.config.max_concurrency)

    async def request(self, request: ModelRequest) -> Completion | Failed:
        most = self._owner.config.top_logprobs
        jobs = [self._call(partial(asked_for, slot, request, most), slot.prefill) for slot in request.slots]
        if request.max_tokens > 0:
            text = replace(request, top_logprobs=min(request.top_logprobs, most))
            jobs.append(self._call(lambda _: text))
        results = await asyncio.gather(*jobs)
        served = [result for result in results if isinstance(result, Completion)]
        failures = [result for result in results if isinstance(result, Failed)]
        written = results[-1] if request.max_tokens > 0 else None
        if isinstance(written, Failed) or (failures and not served):
            return failures[-1]
        scored = zip(request.slots, results, strict=False)
        return replace(
            written or Completion(),
            scores=tuple(slot_logprobs(s, r) if isinstance(r, Completion) else None for s, r in scored),
            prompt_tokens=sum(result.prompt_tokens for result in served),
            cached_tokens=sum(result.cached_tokens for result in served),
            generated_tokens=sum(result.generated_tokens for result in served),
        )

    async def _call(self, make: Callable[[ConstraintMode], ModelRequest], begun: str = "") -> Completion | Failed:
        async def attempt(mode: ConstraintMode) -> tuple[Completion | Failed, Adherence]:
            request = make(mode)
            result, status = await self._send(request, mode, begun)
            return result, _adherence(result, status, request.constraint, mode)

        mode = self._owner.constraint_mode
        if make(ConstraintMode.STRUCTURED).constraint is None:
            result, _ = await attempt(mode)
            return result
        return await self._client.negotiate(_MODES, attempt)

    async def _send(self, request: ModelRequest, mode: ConstraintMode, begun: str) -> tuple[Completion | Failed, int]:
        """Return what came back, and the status; 0 for none."""
        config = self._owner.config
        content = body(request, config.model, mode, begun)
        route = TEXT if isinstance(request.prompt, TextPrompt) else CHAT
        async with self._slots:
            reply = await self._client.send(
                "POST", f"{config.base}{route}", lambda: content, lambda received: parse(received, route)
            )
        return reply.value or Failed(f"{config.url}: {reply.reason}"), reply.status


def _adherence(
    result: Completion | Failed, status: int, constraint: Constraint | None, mode: ConstraintMode
) -> Adherence:
    if isinstance(result, Failed):
        return Adherence.REFUSED if status in REFUSED else Adherence.UNKNOWN
    obeyed = mode is ConstraintMode.NONE or _followed(result, constraint, mode)
    return Adherence.OBEYED if obeyed else Adherence.IGNORED


def _followed(completion: Completion, constraint: Constraint | None, mode: ConstraintMode) -> bool:
    """Return whether a reply follows its constraint, as far as it was sent and the reply is whole."""
    if constraint is None or (mode is ConstraintMode.SCHEMA and constraint.form is not ConstraintForm.JSON):
        return True
    if completion.finish == "length" and constraint.form is not ConstraintForm.CHOICE:
        return constraint.form is not ConstraintForm.JSON or completion.text.lstrip()[:1] in _JSON_BEGINS
    return obeys(completion.text, constraint)


def obeys(text: str, constraint: Constraint) -> bool:
    """Whether the whole text is what the constraint allows; white space around a choice does not matter."""
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
