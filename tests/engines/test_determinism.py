"""`deterministic=True`: the same question gives the same bytes, alone, again and in any batch."""

import json
from importlib.util import find_spec

import pytest

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.decoding.policy import Decoding

QUESTIONS = [
    f"What is letter {number} of the alphabet{'?' * (number % 5 + 1)}"
    for number in range(33)
]
ENGINES = [
    "transformers",
    pytest.param(
        "vllm",
        marks=pytest.mark.skipif(
            find_spec("vllm") is None, reason="vllm is not installed"
        ),
    ),
]


def search(queries, k):
    return [
        [Passage(f"{at}", f"Passage {at} on {query}") for at in range(k)]
        for query in queries
    ]


def in_bytes(answer):
    """Return all of an answer but what it cost."""
    trace = json.loads(answer.trace.to_json())
    return json.dumps([answer.text, answer.error, trace]).encode()


def ask_in_batches(rag, questions, size):
    for start in range(0, len(questions), size):
        for answer in rag.generate(questions[start : start + size]):
            yield in_bytes(answer)


def assert_equal_bytes(rag, questions):
    alone = list(ask_in_batches(rag, questions, 1))
    assert list(ask_in_batches(rag, questions, 1)) == alone
    for size in (8, 32):
        assert list(ask_in_batches(rag, questions, size)) == alone


@pytest.mark.engine
@pytest.mark.parametrize("engine", ENGINES)
def test_questions_twice_and_in_batches_of_1_8_and_32(tiny_llama, engine):
    options = {"kv_cache_gib": 0.1} if engine == "vllm" else {}
    with SelfRAG.from_pretrained(
        tiny_llama,
        retriever=search,
        engine=engine,
        deterministic=True,
        max_model_len=512,
        dtype="bfloat16",
        **options,
    ) as rag:
        rag.defaults = Decoding(
            mode="always", passages=1, max_segments=1, segment_tokens=4
        )
        assert_equal_bytes(rag, QUESTIONS)


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_fifty_questions_of_the_demo(engine):
    with SelfRAG.from_pretrained(engine=engine, deterministic=True) as rag:
        rag.defaults = Decoding(passages=2, max_segments=1, segment_tokens=16)
        assert_equal_bytes(
            rag, [f"Who was king number {number} of England?" for number in range(50)]
        )
