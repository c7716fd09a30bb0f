"""Settings of a remote engine, and what a server tells about itself. Sends nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retrieval.checks import number, web_address, whole
from retrieval.pretrained import load
from retrieval.reading import read_json, user_path
from selfrag.engines.base import Limits
from selfrag.errors import EngineError


@dataclass(frozen=True, slots=True)
class HTTPConfig:
    """How to reach a `vllm serve`.

    Attributes:
        url: such as `http://127.0.0.1:8000`.
        model: served name of the base model; may be left out where the server has one only.
        model_dir: checkpoint directory or hub name, from which the size of the vocabulary is read.
        vocab_size: the same as a number; wins over `model_dir`.
        api_key: sent as bearer token; by default what the environment variable `api_key_env` holds, if anything.
        api_key_env: name of that variable.
        max_concurrency: requests at the server at once; more wait here.
        connect_timeout: seconds for a connection.
        read_timeout: seconds for a whole answer, the time in the server's queue included.
        retries: repetitions after a failed connection and after status 429, 502, 503 and 504.
        backoff: seconds before the first repetition; doubled for each further one.
        max_logprobs: `--max-logprobs` of the server, which bounds the watched ids of a request to one less.
        trust_remote_code: let Python code of the tokenizer in `model_dir` run, with all your rights. Read it first.
    """

    url: str
    model: str | None = None
    model_dir: str | None = None
    vocab_size: int | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str = "VLLM_API_KEY"
    max_concurrency: int = 64
    connect_timeout: float = 5.0
    read_timeout: float = 300.0
    retries: int = 3
    backoff: float = 0.5
    max_logprobs: int = 20
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        web_address(self.url)
        whole("max_concurrency", self.max_concurrency)
        whole("max_logprobs", self.max_logprobs)
        whole("retries", self.retries, 0)
        number("connect_timeout", self.connect_timeout, above=True)
        number("read_timeout", self.read_timeout, above=True)
        number("backoff", self.backoff)

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of every request."""
        key = self.api_key or os.environ.get(self.api_key_env)
        return {"Authorization": f"Bearer {key}"} if key else {}


def served(listing: Mapping[str, Any], config: HTTPConfig) -> tuple[str, Limits]:
    """Name of the base model and limits, from the reply of `/v1/models`.

    Raises:
        EngineError: the wanted model is not served, or the reply lacks what is needed.
    """
    cards = [card for card in listing.get("data") or () if isinstance(card, dict) and isinstance(card.get("id"), str)]
    bases = {card["id"]: card for card in cards if not card.get("parent")}
    if config.model is None and len({card.get("root") or name for name, card in bases.items()}) == 1:
        name = next(iter(bases))  # further names with the same root are aliases
    elif config.model in bases:
        name = config.model
    else:
        raise EngineError(f"{config.url} does not serve model {config.model}; it serves: {', '.join(bases) or 'none'}")
    length = bases[name].get("max_model_len")
    if not isinstance(length, int):
        raise EngineError(f"{config.url} does not tell max_model_len of {name}; is it a vllm serve?")
    parents = {name, bases[name].get("root")} - {None}
    adapters = frozenset(card["id"] for card in cards if card.get("parent") in parents)
    return name, Limits(length, _vocab_size(config, name), config.max_logprobs - 1, adapters)


def _vocab_size(config: HTTPConfig, served_name: str) -> int:
    if config.vocab_size is not None:
        return config.vocab_size
    if config.model_dir is None:
        raise EngineError(f"size of the vocabulary of {served_name} unknown; pass vocab_size= or model_dir=")
    file = user_path(config.model_dir) / "config.json"
    if file.is_file():
        values = read_json(file)
    else:
        values = load("AutoConfig", config.model_dir, trust_remote_code=config.trust_remote_code).to_dict()
    known = [values, values.get("text_config")] if isinstance(values, dict) else []
    size = next((one["vocab_size"] for one in known if isinstance(one, dict) and one.get("vocab_size")), None)
    if not isinstance(size, int):
        raise EngineError(f"{config.model_dir} does not tell its vocab_size; pass vocab_size=")
    return size
