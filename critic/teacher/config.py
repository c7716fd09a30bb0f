"""Settings of an endpoint that labels. Sends nothing; the API key is read from the environment when it is needed."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from critic.teacher.base import TeacherError


class Constraint(StrEnum):
    """How an answer is held to the label set."""

    AUTO = "auto"  # the first of choice, schema and free that the endpoint takes and obeys
    CHOICE = "choice"  # vLLM structured outputs: one of the labels and nothing else
    SCHEMA = "schema"  # response_format json_schema with an enumeration
    LOGPROBS = "logprobs"  # score a letter a label by the log-probabilities of the first token
    FREE = "free"  # no constraint; the answer is parsed strictly


class Api(StrEnum):
    """Which route is used."""

    CHAT = "chat"
    COMPLETIONS = "completions"  # for base models without a chat template


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """How to reach an OpenAI-compatible endpoint, and how to ask.

    Attributes:
        url: base URL such as `https://api.openai.com/v1`; without a path, `/v1` is added.
        model: name of the model there.
        api: chat or completions.
        constraint: how answers are held to the label set.
        temperature: the paper asked at 1; 0 makes labels repeatable as far as the endpoint does.
        max_tokens: most tokens of an answer (the paper: 200).
        seed: sent along where given.
        min_coverage: with label scoring, least probability on the label set; below, the answer is set aside.
        api_key_env: environment variable that holds the key, if one is needed.
        concurrency: requests under way at once.
        requests_per_minute: most requests started a minute; None for no limit.
        timeout: seconds for one whole answer.
        connect_timeout: seconds for a connection.
        retries: repetitions of a request that may succeed later.
        backoff: seconds before the first repetition; doubled for each further one.
        longest_wait: seconds; a repetition never waits longer, and an endpoint that asks for more ends the run.
    """

    url: str
    model: str
    api: Api = Api.CHAT
    constraint: Constraint = Constraint.AUTO
    temperature: float = 0.0
    max_tokens: int = 200
    seed: int | None = None
    min_coverage: float = 0.5
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 8
    requests_per_minute: float | None = None
    timeout: float = 120.0
    connect_timeout: float = 10.0
    retries: int = 5
    backoff: float = 1.0
    longest_wait: float = 300.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TeacherError(f"url {self.url!r} is not a web address; give one like http://127.0.0.1:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise TeacherError(
                f"the url of {parts.hostname} holds more than an address; give it without user, password, query"
                f" and fragment, and a key in the environment variable {self.api_key_env}"
            )
        if not self.model.strip():
            raise TeacherError("the name of the model is empty; give the name that the endpoint knows")
        bounds = {
            "concurrency": (self.concurrency, 1, 1024),
            "max_tokens": (self.max_tokens, 1, 1_000_000),
            "retries": (self.retries, 0, 100),
            "temperature": (self.temperature, 0, 2),
            "min_coverage": (self.min_coverage, 0, 1),
            "timeout": (self.timeout, 0.001, 86_400),
            "connect_timeout": (self.connect_timeout, 0.001, 86_400),
            "backoff": (self.backoff, 0, 3_600),
            "longest_wait": (self.longest_wait, 0, 86_400),
            "requests_per_minute": (self.requests_per_minute or 1, 0.001, 1e6),
        }
        for name, (value, low, high) in bounds.items():
            if not (math.isfinite(value) and low <= value <= high):
                raise TeacherError(f"{name}={value:g}; give a number from {low:g} to {high:g}")
        if self.requests_per_minute == 0:
            raise TeacherError("requests_per_minute=0; give a number above 0, or none for no limit")

    @property
    def route(self) -> str:
        """The address that requests go to."""
        base = self.url.rstrip("/")
        base = base if urlsplit(base).path else f"{base}/v1"
        return f"{base}/{'chat/completions' if self.api is Api.CHAT else 'completions'}"

    def key(self) -> str:
        """The API key, or nothing.

        Raises:
            TeacherError: it cannot be sent in a header.
        """
        key = os.environ.get(self.api_key_env, "").strip()
        if not key.isascii() or not key.isprintable():
            raise TeacherError(f"the key in {self.api_key_env} holds characters that no key has; set it again")
        return key
