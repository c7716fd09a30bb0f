"""Requests to OpenAI-compatible endpoints, and the label that a reply gives."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from critic.cases import Case
from critic.teacher.base import BadReplyError
from critic.teacher.config import Api, Constraint, EndpointConfig
from critic.teacher.prompts import answers, form_of, prompt

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_NEGATION = re.compile(r"\b(?:not|never|neither|nor|cannot|than|instead)\b|n['\u2019]t\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_LONGEST_LINE = 2_000


def read_label(text: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    """The label an answer gives.

    Args:
        text: the answer, of any length and content.
        surfaces: what may be written -> label name.

    Returns:
        The label name and an empty reason, or None and the reason, which repeats nothing of the answer.
    """
    thought = _THOUGHT.match(text)
    answer = text[thought.end() if thought else 0 :].strip()
    if not answer:
        return None, "empty answer"
    if answer.startswith("<think>"):
        return None, "a thought without an end"
    if answer.startswith("{"):
        return _from_object(answer, surfaces)
    if (label := _exact(answer, surfaces)) is not None:
        return label, ""
    line = answer.split("\n", 1)[0].strip()
    if len(line) > _LONGEST_LINE:
        return None, "the first line is too long"
    return _from_line(line, surfaces)


def _exact(answer: str, surfaces: Mapping[str, str]) -> str | None:
    if answer in surfaces:
        return surfaces[answer]
    return surfaces.get(f"[{answer}]")


def _from_line(line: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    if (label := _exact(line, surfaces)) is not None:
        return label, ""
    if all(surface.isdigit() for surface in surfaces):
        found = _NUMBER.findall(line)
        if len(found) != 1:
            return None, f"{len(found)} numbers in the first line"
        return _unless_negated(line, found[0], surfaces) if found[0] in surfaces else (None, "a number off the scale")
    found = [surface for surface in surfaces if surface.startswith("[") and surface in line]
    if len(found) != 1:
        return None, f"{len(found)} labels of the set in the first line"
    return _unless_negated(line, found[0], surfaces)


def _unless_negated(line: str, surface: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    if _NEGATION.search(line[: line.index(surface)]):
        return None, "the first line negates or compares"
    return surfaces[surface], ""


def _from_object(answer: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        value = json.loads(answer, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None, "an object that is no JSON, or names a key twice"
    label = value.get("label")
    if not isinstance(label, str) or (found := _exact(label.strip(), surfaces)) is None:
        return None, "an object without a label of the set"
    return found, ""


TOP = 20
"""Most log-probabilities a position that endpoints give."""

_NO_VALUE = -1_000.0  # servers write -9999.0 where they have none


@dataclass(frozen=True, slots=True)
class Scored:
    """The best label.

    Attributes:
        label: label name, or None.
        reason: why there is none.
        distribution: label name -> probability, normalised; None unless every label was among the tokens told.
        coverage: probability mass found on the labels, a lower bound where some were not told.
    """

    label: str | None
    reason: str
    distribution: Mapping[str, float] | None
    coverage: float


def first_token(choice: Mapping[str, Any]) -> list[tuple[str, float]] | None:
    """Tokens and log-probabilities told for the first position; None where the endpoint gave none."""
    match choice.get("logprobs"):
        case {"content": [{"top_logprobs": [*entries]}, *_]}:
            pairs: list[tuple[Any, Any]] = [
                (e.get("token"), e.get("logprob")) for e in entries if isinstance(e, Mapping)
            ]
        case {"top_logprobs": [{**table}, *_]}:
            pairs = list(table.items())
        case _:
            return None
    return [
        (token, float(value))
        for token, value in pairs
        if isinstance(token, str) and type(value) in (int, float) and _NO_VALUE < value <= 1e-3
    ]


def best_letter(scores: list[tuple[str, float]], letters: Mapping[str, str], least: float) -> Scored:
    """The label whose letter is most probable; `A` and ` A` are the same letter.

    Args:
        scores: of the first position.
        letters: letter -> label name.
        least: coverage below which there is no label.
    """
    mass: dict[str, float] = {}
    for token, value in dict(scores).items():
        if (letter := token.strip()) in letters:
            mass[letter] = mass.get(letter, 0.0) + math.exp(value)
    coverage = min(1.0, math.fsum(mass.values()))
    if not mass:
        return Scored(None, f"no label among the {len(scores)} most probable tokens", None, 0.0)
    if coverage < least:
        return Scored(None, f"coverage {coverage:.3f} of the label set is below {least:g}", None, coverage)
    best = max(letters, key=lambda letter: mass.get(letter, -1.0))
    distribution = None
    if len(mass) == len(letters):
        total = math.fsum(mass.values())
        distribution = {label: mass[letter] / total for letter, label in letters.items()}
    return Scored(letters[best], "", distribution, coverage)


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
