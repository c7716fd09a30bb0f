"""Many threads and event loops on each real engine: the answers of single calls, with intrinsics among them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pump import at_once

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.decoding.answer import Answer, Segment
from selfrag.intrinsics.answerability import Answerability
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.loading import load_tokenizer

pytestmark = pytest.mark.engine

QUESTIONS = [f"Who wrote novel {number}?" + " It is about the sea." * (number % 7) for number in range(32)]
OPTIONS = {"max_segments": 2, "segment_tokens": 12, "mode": "always", "beam": 2}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def search(queries: Sequence[str], k: int) -> list[list[Passage]]:
    return [[Passage(f"{len(query)}-{rank}", f"{query} Text {rank}.") for rank in range(k)] for query in queries]


@pytest.fixture(scope="module", params=["transformers", "vllm", "http"])
def rag(request: pytest.FixtureRequest, tiny_llama: Any) -> Iterator[SelfRAG]:
    local = {"dtype": "float32", "max_model_len": 1024}
    if request.param == "http":
        request.getfixturevalue("_served").ensure()
        options: dict[str, Any] = {"url": request.getfixturevalue("_served").url}
    elif request.param == "vllm":
        pytest.importorskip("vllm", reason="vllm is not installed")
        options = {**local, "kv_cache_gib": 0.1}
    else:
        options = local
    with SelfRAG.from_pretrained(tiny_llama, engine=request.param, retriever=search, **options) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def singles(rag: SelfRAG) -> list[Answer]:
    return [rag.generate(question, passages=3, **OPTIONS) for question in QUESTIONS]


def same(one: Answer, other: Answer) -> bool:
    scores = [segment.score for segment in one.segments]
    return one.text == other.text and [segment.score for segment in other.segments] == pytest.approx(scores, abs=1e-3)


def test_32_threads_give_the_32_answers_of_single_calls(rag: SelfRAG, singles: list[Answer]) -> None:
    answers = at_once(32, lambda number: rag.generate(QUESTIONS[number], passages=3, **OPTIONS))
    assert all(map(same, answers, singles))
    assert len({answer.text for answer in singles}) > 16  # one answer for all would prove nothing


def test_so_they_do_while_others_leave_early(rag: SelfRAG, singles: list[Answer]) -> None:
    def ask(number: int) -> Answer | None:
        pieces = rag.stream(QUESTIONS[number], passages=3, **OPTIONS)
        if number % 4 == 0:
            next(pieces)
            pieces.close()  # type: ignore[attr-defined]
            return None
        return [piece for piece in pieces if isinstance(piece, Answer)][-1]

    answers = at_once(32, ask)
    assert all(answer is None or same(answer, single) for answer, single in zip(answers, singles, strict=True))
    assert sum(answer is not None for answer in answers) == 24


def test_so_do_tasks_of_an_event_loop_of_which_some_are_cancelled(rag: SelfRAG, singles: list[Answer]) -> None:
    chance = random.Random(0)

    async def everything() -> list[Any]:
        tasks = [asyncio.create_task(rag.agenerate(question, passages=3, **OPTIONS)) for question in QUESTIONS]
        for task in chance.sample(tasks, 8):
            await asyncio.sleep(0.005)
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ends = asyncio.run(everything())
    assert all(
        isinstance(end, asyncio.CancelledError) or same(end, one) for end, one in zip(ends, singles, strict=True)
    )
    assert sum(isinstance(end, Answer) for end in ends) >= 24


def test_an_event_loop_streams_what_threads_get(rag: SelfRAG, singles: list[Answer]) -> None:
    async def read() -> list[Segment | Answer]:
        return [piece async for piece in rag.astream(QUESTIONS[3], passages=3, **OPTIONS)]

    *_, last = asyncio.run(read())
    assert isinstance(last, Answer)
    assert same(last, singles[3])


def test_intrinsics_and_answers_share_an_engine(rag: SelfRAG, singles: list[Answer], tiny_llama: Any) -> None:
    tokenizer = load_tokenizer(tiny_llama)
    tokenizer.chat_template = TEMPLATE
    judge = Answerability(EngineExecutor(rag.engine, tokenizer))
    alone: list[float | None] = [judge(question, search([question], 1)[0]).answerable for question in QUESTIONS[:16]]

    def work(number: int) -> Any:
        question = QUESTIONS[number]
        if number < 16:
            return judge(question, search([question], 1)[0]).answerable
        return rag.generate(question, passages=3, **OPTIONS)

    found = at_once(32, work)
    assert found[:16] == pytest.approx(alone, abs=1e-3)
    assert all(map(same, found[16:], singles[16:]))
