"""The settings of a client of an OpenAI-compatible server."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from urllib.parse import urlsplit

from selfrag.common.checks import check_float, check_int, check_url
from selfrag.common.errors import EngineError


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Address, key, time limits and repetitions of a server.

    Attributes:
        url: address of an OpenAI-compatible server, such as `http://127.0.0.1:8000`.
        api_key: bearer token; by default what the environment variable `api_key_env` holds, if anything.
        api_key_env: environment variable that holds the API key.
        max_concurrency: most requests at the server at once; more wait here.
        requests_per_minute: most requests started a minute.
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds to wait for a whole reply, the time in the server's queue included.
        retries: repetitions of a request that may succeed later.
        backoff: seconds before the first repetition; doubled for each further one.
        longest_wait: most seconds before a repetition.
    """

    url: str
    _: KW_ONLY
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str = "OPENAI_API_KEY"
    max_concurrency: int = 16
    requests_per_minute: float | None = None
    connect_timeout: float = 10.0
    read_timeout: float = 300.0
    retries: int = 3
    backoff: float = 0.5
    longest_wait: float = 30.0

    def __post_init__(self) -> None:
        parts = check_url(self.url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise EngineError(
                f"the url of {parts.hostname} holds more than an address; give it without user, password, query"
                f" and fragment, and a key in the environment variable {self.api_key_env}"
            )
        check_int("max_concurrency", self.max_concurrency, 1, 1024)
        check_int("retries", self.retries, 0, 100)
        check_float("connect_timeout", self.connect_timeout, 0, 86_400, above=True)
        check_float("read_timeout", self.read_timeout, 0, 86_400, above=True)
        check_float("backoff", self.backoff, 0, 3_600)
        check_float("longest_wait", self.longest_wait, 0, 86_400)
        if self.requests_per_minute is not None:
            check_float(
                "requests_per_minute", self.requests_per_minute, 0, 1e6, above=True
            )

    @property
    def base(self) -> str:
        """Return the address before the routes of OpenAI; `/v1` where `url` has no path."""
        bare = self.url.rstrip("/")
        return bare if urlsplit(bare).path else f"{bare}/v1"

    def key(self) -> str:
        """Return the API key, or nothing; an `EngineError` where it cannot be sent in a header."""
        key = (self.api_key or os.environ.get(self.api_key_env, "")).strip()
        if not key.isascii() or not key.isprintable():
            raise EngineError(
                f"the key in {self.key_source} holds characters that no key has; set it again"
            )
        return key

    @property
    def key_source(self) -> str:
        """Return where the key comes from, for messages."""
        return "api_key" if self.api_key else self.api_key_env
