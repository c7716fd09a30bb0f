"""Vectors of a server of embeddings that speaks OpenAI's API, as the encoder of an index.

An index records the name of the model, and no address: a file must not decide where questions are sent. So a user names
the server again, or for good in an environment variable.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from retrieval.encoders import EncoderCard, check_vectors
from selfrag.common.errors import EngineError, UserError, count_of
from selfrag.common.untrusted import replace_surrogates
from selfrag.common.validation import validate
from selfrag.engines.client import BadReplyError, Client, json_of
from selfrag.engines.client_thread import ClientThread, run_together
from selfrag.engines.server_config import ServerConfig

ADDRESS = "SELFRAG_ENCODER_ENGINE"
"""Environment variable with the address of the server for indexes that one has encoded."""
_RECORDED = "server"
_TEXTS = 64  # of a request
_HINT = "start one that answers /embeddings, such as: vllm serve MODEL --runner pooling"


class _Embedding(TypedDict):
    index: int
    embedding: list[float]


class _Embeddings(TypedDict):
    data: list[_Embedding]


class _Model(TypedDict):
    id: str


class _Models(TypedDict):
    data: list[_Model]


def open_server(source: str) -> ServerEncoder:
    """Return the encoder of an address `http://HOST:PORT/v1#MODEL`, or of `server:MODEL` as an index records it.

    Raises:
        UserError: there is no such server or model, or an index was encoded by a server and none is named.
    """
    scheme, _, model = source.partition(":")
    if scheme != _RECORDED:
        url, _, model = source.partition("#")
        return ServerEncoder(url, model)
    url = os.environ.get(ADDRESS, "")
    if not url:
        raise UserError(
            f"the encoder {model:.200} is a model of a server; name it by --encoder-engine URL, or in the environment"
            f" variable {ADDRESS}"
        )
    return ServerEncoder(url, model)


class ServerEncoder:
    """A model of embeddings behind an address. Safe to call from several threads.

    Args:
        url: such as `http://127.0.0.1:8000/v1`; without a path `/v1` is added.
        model: its name there; may be empty where the server has only one.
        api_key: by default what the environment variable `OPENAI_API_KEY` holds.

    Raises:
        UserError: no server answers there, or it has no such model.
    """

    def __init__(self, url: str, model: str = "", api_key: str | None = None) -> None:
        self._config = ServerConfig(url, api_key=api_key)
        self._client = ClientThread(partial(Client, self._config, _HINT))
        self._model = model or self._only_model()
        vector = self._vectors(["A text to learn the length of a vector."])[0]
        if not len(vector):
            raise UserError(
                f"{self._model!r:.80} gave an empty vector; name a model of embeddings"
            )
        self.card = EncoderCard(
            name=self._model,
            fingerprint=hashlib.blake2b(
                self._model.encode(), digest_size=8
            ).hexdigest(),
            dim=len(vector),
            pooling=_RECORDED,
            normalized=bool(abs(np.linalg.norm(vector) - 1) < 1e-3),
            source=f"{_RECORDED}:{self._model}",
            precision="",
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors [n, d] of n texts, in their order.

        Raises:
            EngineError: the server does not answer, or refuses a text, such as one that is too long for its model.
        """
        if not texts:
            return np.zeros((0, self.card.dim), np.float32)
        return check_vectors(self._vectors(texts), self.card, len(texts))

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the embeddings of texts, from as many requests at once as the server may have."""
        # many servers refuse no text
        clean = [replace_surrogates(text) or " " for text in texts]
        requests = []
        for start in range(0, len(clean), _TEXTS):
            part = clean[start : start + _TEXTS]
            requests.append(
                {"model": self._model, "input": part, "encoding_format": "float"}
            )
        replies = self._ask("POST", "/embeddings", requests, _Embeddings)
        vectors: list[list[float]] = []
        for request, reply in zip(requests, replies, strict=True):
            rows = sorted(reply["data"], key=lambda row: row["index"])
            if [row["index"] for row in rows] != list(range(len(request["input"]))):
                raise EngineError(
                    f"{self._config.url} gave {count_of(len(rows), 'embeddings')} of"
                    f" {count_of(len(request['input']), 'texts')}"
                )
            vectors += [row["embedding"] for row in rows]
        return vectors

    def _only_model(self) -> str:
        reply: _Models = self._ask("GET", "/models", [None], _Models)[0]
        names = [model["id"] for model in reply["data"]]
        if len(names) != 1:
            raise UserError(
                f"{self._config.url} has {count_of(len(names), 'models')} ({', '.join(names):.400});"
                " name one: --encoder"
            )
        return names[0]

    def _ask(
        self, method: str, route: str, requests: Sequence[Any], kind: Any
    ) -> list[Any]:
        """Return the replies to all requests, each checked to be a `kind`."""
        address = self._config.base + route

        def parse(content: bytes) -> Any:
            try:
                return validate(kind, json_of(content), others="ignore")
            except UserError as error:
                raise BadReplyError(str(error)) from error

        async def reply_to(client: Client, request: Any) -> Any:
            reply = await client.send(method, address, lambda: request, parse)
            if reply.value is None:
                raise EngineError(f"{address}: {reply.reason}")
            return reply.value

        return self._client.call(
            lambda client: run_together(
                [reply_to(client, request) for request in requests]
            )
        )
