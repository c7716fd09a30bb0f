"""The wire format of OpenAI-compatible endpoints: a case as a request body, and what a reply says. Pure.

Everything in a reply is untrusted: it may be no JSON, of another shape, huge, or hold control characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from critic.cases import Case
from critic.teacher.base import BadReplyError
from critic.teacher.catalogue import form_of
from critic.teacher.config import Api, Constraint, EndpointConfig
from critic.teacher.parsing import read_label
from critic.teacher.prompts import answers, prompt
from critic.teacher.scoring import TOP, best_letter, first_token

LONGEST_RAW = 4_000
_MOST_TOKENS = 10**9
_SURROGATES = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one reply says.

    Attributes:
        raw: the answer's text, cut to `LONGEST_RAW` characters.
        label: label name, or None.
        reason: why there is none.
        prompt_tokens: as the endpoint counts.
        completion_tokens: as the endpoint counts.
        distribution: over the label set in its order, where every label was scored.
        coverage: probability mass on the label set, where labels were scored.
    """

    raw: str
    label: str | None
    reason: str
    prompt_tokens: int
    completion_tokens: int
    distribution: tuple[float, ...] | None = None
    coverage: float | None = None


def body(case: Case, config: EndpointConfig, constraint: Constraint) -> dict[str, Any]:
    """The JSON of a request.

    Raises:
        UserError: the case lacks what its group judges.
    """
    letters = constraint is Constraint.LOGPROBS
    text = prompt(case, letters=letters)
    surfaces = list(answers(form_of(case), letters=letters))
    chat = config.api is Api.CHAT
    sent: dict[str, Any] = {"model": config.model, "temperature": config.temperature}
    sent |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    sent["max_tokens"] = 1 if letters else config.max_tokens
    if config.seed is not None:
        sent["seed"] = config.seed
    match constraint:
        case Constraint.CHOICE:
            sent["structured_outputs"] = {"choice": surfaces}
            sent["skip_special_tokens"] = (
                False  # a model with reflection tokens would answer with one, and none be seen
            )
        case Constraint.SCHEMA:
            sent["response_format"] = {"type": "json_schema", "json_schema": _schema(surfaces)}
        case Constraint.LOGPROBS:
            sent |= {"logprobs": True, "top_logprobs": TOP} if chat else {"logprobs": TOP}
        case _ if not chat:
            sent["stop"] = ["\n\n"]  # a base model goes on with another item
    return sent


def _schema(surfaces: list[str]) -> dict[str, Any]:
    shape = {
        "type": "object",
        "properties": {"label": {"type": "string", "enum": surfaces}},
        "required": ["label"],
        "additionalProperties": False,
    }
    return {"name": "judgment", "strict": True, "schema": shape}


def read(content: bytes, case: Case, config: EndpointConfig, constraint: Constraint) -> Answer:
    """What a reply of status 200 says about a case.

    Raises:
        BadReplyError: it is no JSON object with a choice.
    """
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        raise BadReplyError("the reply is no JSON") from None
    match reply:
        case {"choices": [{"message": {**message}} as choice, *_]} if config.api is Api.CHAT:
            text, refusal = message.get("content"), message.get("refusal")
        case {"choices": [{"text": text} as choice, *_]} if config.api is Api.COMPLETIONS:
            refusal = None
        case _:
            raise BadReplyError("the reply has no choice with a text")
    usage = (_tokens(reply, "prompt_tokens"), _tokens(reply, "completion_tokens"))
    if not isinstance(text, str):
        said = bounded(refusal) if isinstance(refusal, str) else ""
        return Answer(said, None, "the endpoint refused to answer" if said else "an answer without text", *usage)
    if choice.get("finish_reason") == "content_filter":
        return Answer(bounded(text), None, "cut by the endpoint's content filter", *usage)
    form = form_of(case)
    if constraint is Constraint.LOGPROBS and (scores := first_token(choice)) is not None:
        found = best_letter(scores, answers(form, letters=True), config.min_coverage)
        distribution = _in_order(found.distribution, case)
        return Answer(bounded(text), found.label, found.reason, *usage, distribution, found.coverage)
    label, reason = read_label(text, answers(form, letters=constraint is Constraint.LOGPROBS))
    if label is None and choice.get("finish_reason") == "length":
        reason += "; cut at max_tokens"
    return Answer(bounded(text), label, reason, *usage)


def _in_order(distribution: Mapping[str, float] | None, case: Case) -> tuple[float, ...] | None:
    """A label that the form does not offer, such as Continue without evidence, has probability 0."""
    if distribution is None:
        return None
    return tuple(distribution.get(name, 0.0) for name in case.labels.names)


def _tokens(reply: Mapping[str, Any], name: str) -> int:
    match reply.get("usage"):
        case {**usage} if type(count := usage.get(name)) is int and 0 <= count <= _MOST_TOKENS:
            return count
        case _:
            return 0


def bounded(text: str) -> str:
    """Text of others in a length that a journal can hold, without lone surrogates, which no file can."""
    cut = text[:LONGEST_RAW]
    more = f"... ({len(text) - len(cut):,} more characters)" if len(cut) < len(text) else ""
    return _SURROGATES.sub("\ufffd", cut) + more
