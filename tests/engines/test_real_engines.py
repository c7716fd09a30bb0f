"""What the three real engines promise alike: same answers, constraints, many callers at once, early beginnings."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pump import FORMS, at_once, generated, prompt, serve

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.decoding.answer import Answer
from selfrag.decoding.requests import Constraint, Failed, Finish, Form, Generate, Generated
from selfrag.engines.select import load_engine
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.intrinsics.questions import Answerability
from selfrag.loading import load_tokenizer

pytestmark = pytest.mark.engine

CONTEXT = 1024
REFLECTION = tuple(range(400, 415))
"""Ids of the 15 reflection tokens of `tiny_llama`."""

REQUESTS = [
    *(Generate(prompt(length, length), 12, watch_ids=REFLECTION) for length in (1, 5, 33, 64, 130, 200)),
    *(Generate(prompt(70, 1) + prompt(8, own), 10, watch_ids=REFLECTION) for own in range(2, 7)),
    *(Generate(prompt(40, start), 40, stop_ids=tuple(range(3, 100)), watch_ids=REFLECTION) for start in range(20, 24)),
    Generate(prompt(40, 30), 6, allowed_ids=REFLECTION, watch_ids=REFLECTION),
    Generate(prompt(40, 31), 6, allowed_ids=(2,), watch_ids=REFLECTION),
    Generate(prompt(40, 33), 8),
    Generate(prompt(40, 34), 8, watch_ids=(414, 3), adapter="extra"),
    Generate(prompt(CONTEXT - 4, 32), 50, watch_ids=REFLECTION),  # the server has a longer context
]


@pytest.fixture(scope="module")
def transformers_engine(tiny_llama: Any, lora_adapter: Any) -> Iterator[Any]:
    options = {"dtype": "float32", "max_model_len": CONTEXT, "adapters": {"extra": str(lora_adapter)}}
    with_close = load_engine("transformers", tiny_llama, max_batch=8, **options)
    yield with_close
    with_close.close()


@pytest.fixture(scope="module", params=["transformers", "vllm", "http"])
def engine(request: pytest.FixtureRequest, tiny_llama: Any) -> Iterator[Any]:
    if request.param != "http":
        yield request.getfixturevalue(f"{request.param}_engine")
        return
    served = request.getfixturevalue("_served")
    served.ensure()
    remote = load_engine("http", tiny_llama, url=served.url)
    yield remote
    remote.close()


@pytest.fixture(scope="module")
def expected(transformers_engine: Any) -> list[Generated | Failed]:
    return serve(transformers_engine, REQUESTS)


def test_all_give_the_same_on_a_cold_and_a_warm_cache(engine: Any, expected: list[Generated]) -> None:
    """Same greedy tokens and ends, watched log-probabilities within 1e-3."""
    here = engine.limits.max_model_len == CONTEXT
    asked = REQUESTS if here else REQUESTS[:-1]
    cold, warm = serve(engine, asked), serve(engine, asked)
    for request, want, one, again in zip(asked, expected, cold, warm, strict=False):
        for result in (one, again):
            assert isinstance(result, Generated), (result, request)
            assert (result.token_ids, result.finish) == (want.token_ids, want.finish), request
            assert result.watched.shape == want.watched.shape
            np.testing.assert_allclose(result.watched, want.watched, atol=1e-3)
            np.testing.assert_allclose(result.token_logprobs, want.token_logprobs, atol=1e-3)
    assert {result.finish for result in expected} == {"stop", "eos", "budget", "context"}
    assert all(two.cached_tokens >= one.cached_tokens for one, two in zip(cold, warm, strict=True))
    # `expected` found an empty cache.
    assert sum(result.cached_tokens for result in warm) > sum(result.cached_tokens for result in expected)


BAD = (Constraint.regex("(["), Constraint.json({"type": "nonsense"}))


def holds(constraint: Constraint, text: str) -> bool:
    if constraint.form is Form.JSON:
        value = json.loads(text)
        return value["r"] in range(10) and value["f"] in ("yes", "no") and len(value) == 2
    if constraint.form is Form.REGEX:
        return re.fullmatch(constraint.text, text) is not None
    return text in constraint.value


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Any) -> Any:
    return load_tokenizer(tiny_llama)


def test_random_models_write_what_the_constraint_says(engine: Any, tokenizer: Any) -> None:
    wave = [Generate(prompt(20, start), 60, constraint=form) for start in range(3) for form in FORMS]
    for request, result in zip(wave, serve(engine, wave), strict=True):
        assert isinstance(result, Generated), result
        text = tokenizer.decode(result.token_ids, skip_special_tokens=True)
        if result.finish is Finish.EOS:
            assert holds(request.constraint, text), text
        else:  # JSON allows any white space, which a random model may love
            assert request.constraint.form is Form.JSON
            assert text.lstrip().startswith("{")


def test_log_probabilities_are_those_of_the_allowed_tokens(engine: Any, tokenizer: Any) -> None:
    digits = tuple(tokenizer.convert_tokens_to_ids(list("0123456789")))
    watch, digit = (*digits, 3), Constraint.choice([*"0123456789"])
    free, bound = serve(
        engine, [Generate(prompt(20), 1, watch_ids=watch), Generate(prompt(20), 1, watch_ids=watch, constraint=digit)]
    )
    allowed = free.watched[0, :10] - np.logaddexp.reduce(free.watched[0, :10])
    np.testing.assert_allclose(bound.watched[0, :10], allowed, atol=1e-4)
    assert bound.watched[0, 10] == -np.inf
    assert bound.token_logprobs[0] == pytest.approx(float(allowed.max()), abs=1e-4)


def test_what_cannot_be_compiled_fails_alone_and_a_stop_id_may_follow_a_complete_form(
    engine: Any, tokenizer: Any
) -> None:
    stop = tokenizer.bos_token_id
    wave = [Generate(prompt(8), 30, stop_ids=(stop,), constraint=one) for one in (*BAD, FORMS[2])]
    *failed, good = serve(engine, wave)
    assert all(isinstance(one, Failed) and "\n" not in one.reason for one in failed)
    assert good.finish in (Finish.STOP, Finish.EOS)
    assert holds(FORMS[2], tokenizer.decode(good.token_ids, skip_special_tokens=True))


@pytest.mark.parametrize("engine", ["transformers", "vllm"], indirect=True)
def test_the_beginning_comes_before_the_whole(engine: Any) -> None:
    """Requests with `report`; over http a server tells everything at once."""
    request = Generate(prompt(70, 61), 12, watch_ids=(5, 400, 414))
    ticket, begun = first_news(engine, replace(request, report=True))
    assert begun.finish is Finish.BEGUN
    done: list[Any] = []
    while not done:
        done = [result for served, result in engine.step() if served == ticket]
    (whole,) = done
    assert len(whole.token_ids) == 12
    assert begun.token_ids == whole.token_ids[: len(begun.token_ids)]
    np.testing.assert_array_equal(begun.watched, whole.watched[: len(begun.token_ids)])
    plain = generated(engine, request)
    assert (whole.token_ids, whole.finish) == (plain.token_ids, plain.finish)
    assert first_news(engine, replace(request, max_tokens=1, report=True))[1].finish is Finish.BUDGET
    # What was given up can be asked for again without its prompt being computed.
    fresh = replace(request, prompt_ids=prompt(90, 62), report=True)
    ticket, begun = first_news(engine, fresh)
    engine.abort([ticket])
    again = generated(engine, replace(fresh, report=False))
    assert again.token_ids[:1] == begun.token_ids[:1]
    assert again.cached_tokens >= 64


def first_news(engine: Any, request: Generate) -> tuple[int, Generated]:
    ticket = engine.submit(request)
    while True:
        for served, result in engine.step():
            if served == ticket:
                return ticket, result


QUESTIONS = [f"Who wrote novel {number}?" + " It is about the sea." * (number % 7) for number in range(32)]
OPTIONS = {"max_segments": 2, "segment_tokens": 12, "mode": "always", "beam": 2, "passages": 3}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def search(queries: Sequence[str], k: int) -> list[list[Passage]]:
    return [[Passage(f"{len(query)}-{rank}", f"{query} Text {rank}.") for rank in range(k)] for query in queries]


@pytest.fixture(scope="module")
def rag(engine: Any, tiny_llama: Any) -> SelfRAG:
    return SelfRAG.from_pretrained(tiny_llama, engine=engine, retriever=search)


@pytest.fixture(scope="module")
def singles(rag: SelfRAG) -> list[Answer]:
    return [rag.generate(question, **OPTIONS) for question in QUESTIONS]


def same(one: Answer, other: Answer) -> bool:
    scores = [segment.score for segment in one.segments]
    return one.text == other.text and [segment.score for segment in other.segments] == pytest.approx(scores, abs=1e-3)


def test_32_threads_get_the_answers_of_single_calls_while_some_leave_early(rag: SelfRAG, singles: list[Answer]) -> None:
    def ask(number: int) -> Answer | None:
        pieces = rag.stream(QUESTIONS[number], **OPTIONS)
        if number % 4 == 0:
            next(pieces)
            pieces.close()  # type: ignore[attr-defined]
            return None
        return [piece for piece in pieces if isinstance(piece, Answer)][-1]

    answers = at_once(32, ask)
    assert all(answer is None or same(answer, single) for answer, single in zip(answers, singles, strict=True))
    assert sum(answer is not None for answer in answers) == 24
    assert len({answer.text for answer in singles}) > 16  # one answer for all would prove nothing


def test_so_do_tasks_of_an_event_loop_of_which_some_are_cancelled(rag: SelfRAG, singles: list[Answer]) -> None:
    chance = random.Random(0)

    async def everything() -> list[Any]:
        tasks = [asyncio.create_task(rag.agenerate(question, **OPTIONS)) for question in QUESTIONS]
        for task in chance.sample(tasks, 8):
            await asyncio.sleep(0.005)
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ends = asyncio.run(everything())
    assert all(
        isinstance(end, asyncio.CancelledError) or same(end, one) for end, one in zip(ends, singles, strict=True)
    )
    assert sum(isinstance(end, Answer) for end in ends) >= 24


def test_intrinsics_and_answers_share_an_engine(rag: SelfRAG, singles: list[Answer], tiny_llama: Any) -> None:
    tokenizer = load_tokenizer(tiny_llama)
    tokenizer.chat_template = TEMPLATE
    judge = Answerability(EngineExecutor(rag.engine, tokenizer))
    alone: list[float | None] = [judge(question, search([question], 1)[0]).answerable for question in QUESTIONS[:8]]

    def work(number: int) -> Any:
        question = QUESTIONS[number]
        if number < 8:
            return judge(question, search([question], 1)[0]).answerable
        return rag.generate(question, **OPTIONS)

    found = at_once(16, work)
    assert found[:8] == pytest.approx(alone, abs=1e-3)
    assert all(map(same, found[8:], singles[8:16]))
