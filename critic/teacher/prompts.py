"""Requests to a teacher as JSON, and what its replies say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from critic.cases import Case
from critic.teacher.base import Api, Constraint, EndpointConfig
from critic.teacher.forms import answers
from selfrag.engines.client import BadReplyError

TOP = 20
"""Most log-probabilities a position that endpoints give."""

LONGEST_RAW = 4_000
_LONGEST_LINE = 2_000
_MOST_TOKENS = 10**9
_NO_VALUE = -1_000.0  # servers write -9999.0 where they have none
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_NEGATION = re.compile(r"\b(?:not|never|neither|nor|cannot|than|instead)\b|n['\u2019]t\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one reply says."""

    raw: str  # the answer's text, cut to `LONGEST_RAW` characters
    label: str | None  # label name
    reason: str  # why there is none
    prompt_tokens: int  # as the endpoint counts
    completion_tokens: int
    distribution: tuple[float, ...] | None = None  # over the label set in its order, where every label was scored
    coverage: float | None = None  # probability mass on the label set, where labels were scored


def body(case: Case, config: EndpointConfig, constraint: Constraint) -> dict[str, Any]:
    """The JSON of a request.

    Raises:
        UserError: the case lacks what its group judges.
    """
    letters = constraint is Constraint.LOGPROBS
    text = config.forms.prompt(case, letters=letters)
    surfaces = list(answers(config.forms.of(case), letters=letters))
    chat = config.api is Api.CHAT
    sent: dict[str, Any] = {"model": config.model, "temperature": config.temperature}
    sent |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    sent["max_tokens"] = 1 if letters else config.max_tokens
    if config.seed is not None:
        sent["seed"] = config.seed
    match constraint:
        case Constraint.CHOICE:
            sent["structured_outputs"] = {"choice": surfaces}
            # A model with reflection tokens would answer with one, and none be seen.
            sent["skip_special_tokens"] = False
        case Constraint.SCHEMA:
            shape = {
                "type": "object",
                "properties": {"label": {"type": "string", "enum": surfaces}},
                "required": ["label"],
                "additionalProperties": False,
            }
            schema = {"name": "judgment", "strict": True, "schema": shape}
            sent["response_format"] = {"type": "json_schema", "json_schema": schema}
        case Constraint.LOGPROBS:
            sent |= {"logprobs": True, "top_logprobs": TOP} if chat else {"logprobs": TOP}
        case _ if not chat:
            sent["stop"] = ["\n\n"]  # a base model continues with another item
    return sent


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
    letters = constraint is Constraint.LOGPROBS
    surfaces = answers(config.forms.of(case), letters=letters)
    if letters and (scores := _first_token(choice)) is not None:
        label, reason, shares, coverage = _best_letter(scores, surfaces, config.min_coverage)
        # A label that the form does not offer, such as Continue without evidence, has probability 0.
        distribution = tuple(shares.get(name, 0.0) for name in case.labels.names) if shares else None
        return Answer(bounded(text), label, reason, *usage, distribution, coverage)
    label, reason = read_label(text, surfaces)
    if label is None and choice.get("finish_reason") == "length":
        reason += "; cut at max_tokens"
    return Answer(bounded(text), label, reason, *usage)


def bounded(text: str) -> str:
    """Text of others in a length that a journal can hold, without lone surrogates, which no file can."""
    cut = text[:LONGEST_RAW]
    more = f"... ({len(text) - len(cut):,} more characters)" if len(cut) < len(text) else ""
    return _SURROGATES.sub("\ufffd", cut) + more


def _tokens(reply: Mapping[str, Any], name: str) -> int:
    match reply.get("usage"):
        case {**usage} if type(count := usage.get(name)) is int and 0 <= count <= _MOST_TOKENS:
            return count
        case _:
            return 0


def read_label(text: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    """The label that an answer in words gives.

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
    alone = {surface.strip("[]"): label for surface, label in surfaces.items()} | dict(surfaces)
    if answer.startswith("{"):
        return _from_object(answer, alone)
    line = answer.split("\n", 1)[0].strip()
    if (label := alone.get(answer) or alone.get(line)) is not None:
        return label, ""
    if len(line) > _LONGEST_LINE:
        return None, "the first line is too long"
    if all(surface.isdigit() for surface in surfaces):
        found, what = _NUMBER.findall(line), "numbers"
    else:
        found, what = [s for s in surfaces if s.startswith("[") and s in line], "labels of the set"
    if len(found) != 1:
        return None, f"{len(found)} {what} in the first line"
    if found[0] not in surfaces:
        return None, "a number off the scale"
    if _NEGATION.search(line[: line.index(found[0])]):
        return None, "the first line negates or compares"
    return surfaces[found[0]], ""


def _from_object(answer: str, alone: Mapping[str, str]) -> tuple[str | None, str]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        value = json.loads(answer, object_pairs_hook=once).get("label")
    except (ValueError, RecursionError):
        return None, "an object that is no JSON, or names a key twice"
    if not isinstance(value, str) or (label := alone.get(value.strip())) is None:
        return None, "an object without a label of the set"
    return label, ""


def _first_token(choice: Mapping[str, Any]) -> dict[str, float] | None:
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
    return {
        token: float(value)
        for token, value in pairs
        if isinstance(token, str) and type(value) in (int, float) and _NO_VALUE < value <= 1e-3
    }


def _best_letter(
    scores: Mapping[str, float], letters: Mapping[str, str], least: float
) -> tuple[str | None, str, Mapping[str, float] | None, float]:
    """The label whose letter is most probable, or why there is none, all labels' shares, and the mass on them.

    An endpoint tells the most probable tokens only. A label that is not among them is less probable than those that
    are, so the best of those present is the best of all; its probability is unknown, and is never filled in. `A` and
    ` A` are the same letter.
    """
    mass: dict[str, float] = {}
    for token, value in scores.items():
        if (letter := token.strip()) in letters:
            mass[letter] = mass.get(letter, 0.0) + math.exp(value)
    coverage = min(1.0, math.fsum(mass.values()))
    if not mass:
        return None, f"no label among the {len(scores)} most probable tokens", None, 0.0
    if coverage < least:
        return None, f"coverage {coverage:.3f} of the label set is below {least:g}", None, coverage
    shares = None
    if len(mass) == len(letters):
        total = math.fsum(mass.values())
        shares = {label: mass[letter] / total for letter, label in letters.items()}
    return letters[max(letters, key=lambda letter: mass.get(letter, -1.0))], "", shares, coverage
