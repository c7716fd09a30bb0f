"""Settings of an OpenAI-compatible endpoint that runs intrinsics. Sends nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from retrieval.checks import number, web_address, whole
from selfrag.errors import EngineError


class Holding(StrEnum):
    """How an endpoint is made to hold to a constraint."""

    AUTO = "auto"  # the first of the others that it takes and obeys
    STRUCTURED = "structured_outputs"  # vLLM: schema, pattern or choice; replies can be begun for the model
    SCHEMA = "response_format"  # OpenAI: a JSON schema
    NONE = "none"  # nothing but the prompt; replies are read as they come


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """How to reach an endpoint.

    Attributes:
        url: such as `http://127.0.0.1:8000/v1`; without a path, `/v1` is added.
        model: its name there; a request's adapter takes its place, as `vllm serve --lora-modules` has it.
        holding: how constraints are sent.
        top_logprobs: most alternatives that the endpoint returns a token; 0 if it returns none.
        api_key: sent as bearer token; by default what `api_key_env` holds, if anything.
        api_key_env: environment variable of the key.
        max_concurrency: requests there at once; more wait here.
        connect_timeout: seconds for a connection.
        read_timeout: seconds for a whole answer.
        retries: repetitions after a failed connection and after status 429, 502, 503 and 504.
        backoff: seconds before the first repetition; doubled for each further one.
    """

    url: str
    model: str
    holding: Holding = Holding.AUTO
    top_logprobs: int = 20
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str = "OPENAI_API_KEY"
    max_concurrency: int = 16
    connect_timeout: float = 10.0
    read_timeout: float = 300.0
    retries: int = 3
    backoff: float = 0.5

    def __post_init__(self) -> None:
        web_address(self.url, "http://127.0.0.1:8000/v1")
        if not self.model.strip():
            raise EngineError("the name of the model is empty; give the name that the endpoint knows")
        whole("max_concurrency", self.max_concurrency)
        whole("retries", self.retries, 0)
        whole("top_logprobs", self.top_logprobs, 0, 20)
        number("connect_timeout", self.connect_timeout, above=True)
        number("read_timeout", self.read_timeout, above=True)
        number("backoff", self.backoff)

    @property
    def base(self) -> str:
        """Address before the routes."""
        bare = self.url.rstrip("/")
        return bare if urlsplit(bare).path else f"{bare}/v1"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of every request."""
        key = self.api_key or os.environ.get(self.api_key_env)
        return {"Authorization": f"Bearer {key}"} if key else {}
