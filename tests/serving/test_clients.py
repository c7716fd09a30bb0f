"""Clients of others talk to the server unmodified."""

from __future__ import annotations

import os

import pytest
from served import Serve, random_rag

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its import would ask the network for prices

QUESTIONS = [f"question {number}" for number in range(2)]


def test_chat_openai_of_langchain(serve: Serve) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    model = langchain.ChatOpenAI(base_url=f"{serve().url}/v1", api_key="none", model="selfrag", temperature=0.2)
    for question in QUESTIONS:
        expected = random_rag().generate(question).cited_text()
        whole = model.invoke(question)
        assert whole.content == expected
        assert whole.usage_metadata["output_tokens"] > 0
        assert "".join(chunk.text for chunk in model.stream(question)) == expected


def test_litellm(serve: Serve) -> None:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    address = {"model": "openai/selfrag", "api_base": f"{serve().url}/v1", "api_key": "none"}
    for question in QUESTIONS:
        expected = random_rag().generate(question).cited_text()
        turns = [{"role": "user", "content": question}]
        message = litellm.completion(**address, messages=turns).choices[0].message
        assert message.content == expected
        assert len(message.annotations or []) == expected.count("[")
        parts = litellm.completion(**address, messages=turns, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == expected
        given = {"max_segments": 1, "mode": "never"}
        short = litellm.completion(**address, messages=turns, extra_body={"selfrag": given}).choices[0].message
        assert short.content == random_rag().generate(question, **given).cited_text()
