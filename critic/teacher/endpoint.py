"""A teacher behind an OpenAI-compatible endpoint, hosted or a local `vllm serve`: many cases at once, with retries."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anyio.from_thread import start_blocking_portal

from critic.cases import Case
from critic.teacher.forms import OWN, TeacherForms
from critic.teacher.run import LabelOutcome, TeacherReply
from critic.teacher.settings import (
    LabelConstraint,
    LabellingLimits,
    TeacherError,
    TeacherSettings,
)
from selfrag.common.jsonl import JsonObject
from selfrag.common.untrusted import shorten
from selfrag.engines.client import (
    REFUSED,
    Adherence,
    Client,
    Negotiation,
    ServerTraits,
    label_schema,
    response_format,
)
from selfrag.engines.client import ServerReply as ServerReply
from selfrag.interface import UserError, count_of, replace_surrogates
from selfrag.judges.openai_wire import CHAT, parse
from selfrag.judges.reasoning import separate

_PER_REQUEST = 8  # what chat templates add around a message

LONGEST_RAW = 4_000
_LONGEST_LINE = 2_000
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|cannot|than|instead)\b|n['\u2019]t\b", re.IGNORECASE
)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")

_DECIDING = (
    "model",
    "constraint",
    "temperature",
    "max_tokens",
    "seed",
)
_QUOTA = ("insufficient_quota", "billing_hard_limit_reached")


@dataclass(frozen=True, slots=True)
class TeacherConfig(TeacherSettings):
    """The settings of a teacher, and the forms that it reads."""

    forms: TeacherForms = OWN  # what is asked


@dataclass(frozen=True, slots=True)
class Forecast:
    """An estimate, for every question asked once."""

    questions: int
    prompt_tokens: int  # to be sent, about
    most_completion_tokens: int  # to be received, at most
    # in the currency of the prices, at most; None without prices
    most_cost: float | None
    # that the limit of requests a minute takes; None without a limit
    least_minutes: float | None

    def __str__(self) -> str:
        parts = [
            f"{count_of(self.questions, 'questions', form=',')} to ask",
            f"about {count_of(self.prompt_tokens, 'tokens', form=',')} to send",
            f"at most {self.most_completion_tokens:,} to receive",
        ]
        if self.most_cost is not None:
            parts.append(f"at most {self.most_cost:,.2f} to pay")
        if self.least_minutes is not None:
            parts.append(f"at least {self.least_minutes:,.1f} minutes")
        return ", ".join(parts)


def by_bytes(text: str) -> int:
    """Tokens of a text by the rule of thumb for English: four bytes a token."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 4)


def forecast(
    questions: Iterable[Case], config: TeacherConfig, limits: LabellingLimits
) -> Forecast:
    """Estimate a run."""
    lengths = [
        by_bytes(config.forms.prompt(question)) + _PER_REQUEST for question in questions
    ]
    sent = sum(lengths)
    received = len(lengths) * config.max_tokens
    minutes = (
        len(lengths) / config.requests_per_minute
        if config.requests_per_minute
        else None
    )
    cost = limits.cost(sent, received)
    return Forecast(len(lengths), sent, received, cost, minutes)


def body(case: Case, config: TeacherConfig, constraint: LabelConstraint) -> JsonObject:
    """Return the JSON of a request; a `UserError` where the case lacks what its group judges."""
    text = config.forms.prompt(case)
    surfaces = list(config.forms.of(case).surfaces)
    sent: JsonObject = {
        "model": config.model,
        "temperature": config.temperature,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": config.max_tokens,
    }
    if config.seed is not None:
        sent["seed"] = config.seed
    match constraint:
        case LabelConstraint.CHOICE:
            sent["structured_outputs"] = {"choice": surfaces}
            # A model with reflection tokens would answer with one, and none be seen.
            sent["skip_special_tokens"] = False
        case LabelConstraint.SCHEMA:
            sent |= response_format("judgment", label_schema(surfaces))
    return sent


def read(content: bytes, case: Case, config: TeacherConfig) -> TeacherReply:
    """Read a reply of status 200 about a case; raise BadReplyError where it has no choice with a message."""
    completion = parse(content, CHAT)
    text = completion.text
    reason, _, words = completion.withheld.partition(": ")
    aside = TeacherReply(
        LabelOutcome.ASIDE,
        raw=bounded(text or words),
        reason=reason or "an answer without text",
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.generated_tokens,
    )
    if reason or not text.strip():
        return aside
    label, reason = read_label(text, config.forms.of(case).surfaces)
    if label is None and completion.finish == "length":
        reason += "; cut at max_tokens"
    outcome = LabelOutcome.ASIDE if label is None else LabelOutcome.LABELLED
    return replace(aside, outcome=outcome, label=label, reason=reason)


def bounded(text: str) -> str:
    """Return text of others in a length that a journal can hold, and as UTF-8 can hold it."""
    return replace_surrogates(shorten(text, LONGEST_RAW))


def read_label(text: str, surfaces: Mapping[str, str]) -> tuple[str | None, str]:
    """Read the label name of an answer in words, or None and the reason, which repeats nothing of the answer.

    `surfaces` is what may be written -> label name.
    """
    separated = separate(text)
    answer = separated.text.strip()
    if not answer:
        return None, (
            "a thought without an end" if separated.is_open else "empty answer"
        )
    alone = {surface.strip("[]"): label for surface, label in surfaces.items()} | dict(
        surfaces
    )
    if answer.startswith("{"):
        return _from_object(answer, alone)
    line = answer.split("\n", 1)[0].strip()
    if (label := alone.get(answer) or alone.get(line)) is not None:
        return label, ""
    if len(line) > _LONGEST_LINE:
        return None, "the first line is too long"
    if all(surface.isdigit() for surface in surfaces):
        written, what = _NUMBER.findall(line), "numbers"
    else:
        written = [
            surface
            for surface in surfaces
            if surface.startswith("[") and surface in line
        ]
        what = "labels of the set"
    if len(written) != 1:
        return None, f"{len(written)} {what} in the first line"
    if written[0] not in surfaces:
        return None, "a number off the scale"
    if _NEGATION.search(line[: line.index(written[0])]):
        return None, "the first line negates or compares"
    return surfaces[written[0]], ""


def _from_object(answer: str, alone: Mapping[str, str]) -> tuple[str | None, str]:
    def once(pairs: list[tuple[str, Any]]) -> JsonObject:
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


class _Hosted(Client):
    """An endpoint that may cost money: what may pass is asked again, and what cannot be mended ends the run."""

    passing = frozenset(
        {0, 200, 408, 409, 425, 429, 500, 502, 503, 504, *range(520, 530)}
    )
    most_bytes = 1 << 20

    def __init__(self, config: TeacherConfig, traits: ServerTraits) -> None:
        super().__init__(config, traits=traits)
        self._settings = config

    def give_up(self, reply: ServerReply[Any], message: str) -> None:
        """Raise a `TeacherError` where no other request would fare better."""
        config, status = self._settings, reply.status
        if status in (401, 403):
            raise TeacherError(self.refusal(reply, message))
        if status in (404, 405):
            raise TeacherError(
                f"{config.route} answered {status} ({message}); check the url and the model {config.model}"
            )
        if 300 <= status < 400:
            raise TeacherError(
                f"{config.route} points to {reply.location or 'another place'!r}; give that url"
            )
        if status == 402 or (
            status == 429 and any(code.encode() in reply.content for code in _QUOTA)
        ):
            raise TeacherError(
                f"the quota of {config.url} is used up ({message}); run the same again when it is not"
            )
        if reply.pause > config.longest_wait:
            raise TeacherError(
                f"{config.url} asks to wait {reply.pause:,.0f} s ({message}); run the same again later,"
                " or give a higher --longest-wait"
            )


_MODES = (LabelConstraint.CHOICE, LabelConstraint.SCHEMA, LabelConstraint.FREE)


def _adherence(reply: TeacherReply) -> Adherence:
    if reply.outcome is LabelOutcome.LABELLED:
        return Adherence.OBEYED
    if reply.outcome is LabelOutcome.ASIDE:
        return Adherence.IGNORED
    # A failure names its constraint where the server refused the request.
    if reply.constraint:
        return Adherence.REFUSED
    return Adherence.UNKNOWN


class EndpointTeacher:
    """Labels by asking an endpoint; `name` is what reports and `label_source` call it, by default the model's."""

    def __init__(self, config: TeacherConfig, name: str | None = None) -> None:
        self.config = config
        self.name = name or config.model
        self._traits = ServerTraits()
        self._negotiation = Negotiation()
        if config.constraint is not LabelConstraint.AUTO:
            self._negotiation.mode = config.constraint

    def identity(self) -> Mapping[str, Any]:
        """Return settings that decide labels, and the fingerprint of all prompts; no key."""
        settings = {key: getattr(self.config, key) for key in _DECIDING}
        return {
            "teacher": self.name,
            **settings,
            "prompts": self.config.forms.fingerprint,
        }

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, TeacherReply]]:
        """Yield one reply a case, in the order of arrival; see `Teacher.label`.

        The event loop has a thread of its own, since a notebook's is running already. It ends with this generator.
        """
        replies = self._replies(cases)
        with start_blocking_portal() as portal:
            while (reply := portal.call(anext, replies, None)) is not None:
                yield reply

    async def _replies(
        self, cases: Iterable[Case]
    ) -> AsyncGenerator[tuple[int, TeacherReply]]:
        source = enumerate(cases)
        waiting: set[asyncio.Task[tuple[int, TeacherReply]]] = set()
        async with _Hosted(self.config, self._traits) as sender:
            try:
                more = True
                while more or waiting:
                    while more and len(waiting) < self.config.max_concurrency:
                        if (item := next(source, None)) is None:
                            more = False
                        else:
                            waiting.add(asyncio.create_task(self._one(sender, *item)))
                    if waiting:
                        done, waiting = await asyncio.wait(
                            waiting, return_when=asyncio.FIRST_COMPLETED
                        )
                        # What has arrived goes out before an error of another case ends the run.
                        for task in sorted(
                            done, key=lambda task: task.exception() is not None
                        ):
                            yield task.result()
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    async def _one(
        self, sender: _Hosted, position: int, case: Case
    ) -> tuple[int, TeacherReply]:
        total = TeacherReply(LabelOutcome.FAILED)

        async def attempt(
            constraint: LabelConstraint,
        ) -> tuple[TeacherReply, Adherence]:
            nonlocal total
            reply = await self._ask(sender, case, constraint)
            total = replace(
                reply,
                requests=total.requests + reply.requests,
                prompt_tokens=total.prompt_tokens + reply.prompt_tokens,
                completion_tokens=total.completion_tokens + reply.completion_tokens,
            )
            return total, _adherence(reply)

        return position, await sender.negotiate(self._negotiation, _MODES, attempt)

    async def _ask(
        self, sender: _Hosted, case: Case, constraint: LabelConstraint
    ) -> TeacherReply:
        try:
            content = body(case, self.config, constraint)
        except UserError as error:
            return TeacherReply(LabelOutcome.FAILED, reason=str(error))
        sent = await sender.send(
            "POST",
            self.config.route,
            lambda: content,
            lambda reply: read(reply, case, self.config),
        )
        if (reply := sent.value) is None:
            raw = sender.hidden(bounded(sent.content.decode("utf-8", "replace")))
            outcome = LabelOutcome.FAILED if sent.whole else LabelOutcome.ASIDE
            refused: str = ""
            if sent.status in REFUSED or not sent.whole:
                refused = constraint
            return TeacherReply(
                outcome,
                raw=raw,
                reason=sent.reason,
                constraint=refused,
                requests=sent.requests,
            )
        # the endpoint does not count, and a cost limit must not stand still
        if not reply.prompt_tokens:
            tokens = by_bytes(self.config.forms.prompt(case))
            reply = replace(
                reply, prompt_tokens=tokens, completion_tokens=by_bytes(reply.raw)
            )
        hidden = sender.hidden(reply.raw)
        return replace(
            reply,
            raw=hidden,
            source=self.name,
            constraint=constraint,
            requests=sent.requests,
        )
