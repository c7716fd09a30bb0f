"""What the three real engines promise alike, and traps of vLLM that must not show in the one that runs here."""

import json
import logging
import os
import re
from contextlib import closing
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
from pump import (
    CONTEXT,
    FORMS,
    TEMPLATE,
    assert_same,
    at_once,
    generated,
    prompt,
    serve,
)
from refusals import refused

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.common.errors import EngineError
from selfrag.decoding.answer import Answer
from selfrag.engines import load_engine
from selfrag.engines.vllm import VLLMConfig, VLLMEngine, quiet_import
from selfrag.intrinsics.questions import Answerability
from selfrag.judges.engine import EngineExecutor
from selfrag.loading import load_training_tokenizer
from selfrag.reflection.requests import (
    Constraint,
    ConstraintForm,
    Failed,
    Finish,
    Generate,
    Generated,
)

pytestmark = pytest.mark.engine

REFLECTION = tuple(range(400, 415))
"""Ids of the 15 reflection tokens of `tiny_llama`."""
REQUESTS = [
    *(
        Generate(prompt(length, length), 12, watch_ids=REFLECTION)
        for length in (1, 5, 33, 64, 130, 200)
    ),
    *(
        Generate(prompt(70, 1) + prompt(8, own), 10, watch_ids=REFLECTION)
        for own in range(2, 7)
    ),
    *(
        Generate(
            prompt(40, start), 40, stop_ids=tuple(range(3, 100)), watch_ids=REFLECTION
        )
        for start in range(20, 24)
    ),
    Generate(prompt(40, 30), 6, allowed_ids=REFLECTION, watch_ids=REFLECTION),
    Generate(prompt(40, 31), 6, allowed_ids=(2,), watch_ids=REFLECTION),
    Generate(prompt(40, 33), 8),
    *(
        Generate(prompt(40 + at, 34), 8, watch_ids=(414, 3), adapter="extra")
        for at in range(3)
    ),
    # the server has a longer context
    Generate(prompt(CONTEXT - 4, 32), 50, watch_ids=REFLECTION),
]


@pytest.fixture(scope="module", params=["transformers", "vllm", "http", "onnx"])
def engine(request):
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture(scope="module")
def load(tiny_llama, lora_adapter):
    common = {
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "adapters": {"extra": str(lora_adapter)},
    }
    return lambda name, **options: load_engine(name, tiny_llama, **common, **options)


@pytest.fixture(scope="module")
def transformers_engine(load):
    with closing(load("transformers", max_batch=8)) as engine:
        yield engine


@pytest.fixture(scope="module")
def vllm_engine(load):
    pytest.importorskip("vllm", reason="vllm is not installed")
    with closing(load("vllm", kv_cache_gib=0.1, max_num_seqs=8)) as engine:
        yield engine


@pytest.fixture(scope="module")
def http_engine(tiny_llama, served_llama):
    served_llama.start_again_if_killed()
    with closing(load_engine("http", tiny_llama, url=served_llama.url)) as engine:
        yield engine


@pytest.fixture(scope="module")
def onnx_engine(tiny_llama):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with closing(load_engine("onnx", tiny_llama, max_batch=8)) as engine:
        yield engine


here = pytest.mark.parametrize("engine", ["transformers", "vllm"], indirect=True)
grammatical = pytest.mark.parametrize(
    "engine", ["transformers", "vllm", "http"], indirect=True
)
in_process = pytest.mark.parametrize(
    "engine", ["transformers", "vllm", "onnx"], indirect=True
)


@pytest.fixture(scope="module")
def expected(transformers_engine):
    return serve(transformers_engine, REQUESTS)


def test_all_give_the_same_on_a_cold_and_a_warm_cache(engine, expected):
    """Same greedy tokens and ends, log-probabilities within 1e-3, the sampled token watched or not."""
    numbers = [
        number
        for number, request in enumerate(REQUESTS)
        if request.adapter in (None, *engine.limits.adapters)
    ]
    if engine.limits.max_model_len > CONTEXT:
        numbers.remove(len(REQUESTS) - 1)
    asked = [REQUESTS[number] for number in numbers]
    cold, warm = serve(engine, asked), serve(engine, asked)
    for number, one, again in zip(numbers, cold, warm, strict=True):
        want = expected[number]
        assert_same(one, want, 1e-3)
        assert_same(again, want, 1e-3)
    assert {result.finish for result in expected} == {
        "stop",
        "eos",
        "budget",
        "context",
    }
    assert all(
        two.cached_tokens >= one.cached_tokens
        for one, two in zip(cold, warm, strict=True)
    )
    # `expected` found an empty cache.
    assert sum(result.cached_tokens for result in warm) > sum(
        expected[number].cached_tokens for number in numbers
    )


def test_neither_a_bad_request_nor_the_end_of_one_touches_others(engine):
    """Defect 39: an EOS in one hypothesis stops others."""
    longest, vocabulary = engine.limits.max_model_len, engine.limits.vocab_size
    bad = [
        Generate(prompt(longest), 5),
        Generate(prompt(5), 5, watch_ids=(vocabulary,)),
        Generate((), 1),
    ]
    ended, *failed, going = serve(
        engine,
        [Generate(prompt(20), 8, allowed_ids=(2,)), *bad, Generate(prompt(20, 1), 8)],
    )
    assert (ended.finish, len(going.token_ids)) == (Finish.EOS, 8)
    for one, reason in zip(
        failed,
        ("does not fit", f"token id {vocabulary} is outside", "empty prompt"),
        strict=True,
    ):
        assert reason in one.reason
        assert "\n" not in one.reason


@in_process
def test_what_is_aborted_never_comes_back_and_others_finish(engine):
    # more than run together
    wave = [Generate(prompt(20, 40 + i), 12, watch_ids=REFLECTION) for i in range(10)]
    alone = [generated(engine, request) for request in wave]
    tickets = [engine.submit(request) for request in wave]
    assert [engine.step() for _ in range(3)] == [[]] * 3
    late = engine.submit(wave[0])  # joins while others run
    engine.abort([tickets[1], tickets[9], 10**9])
    results = {}
    for _ in range(60):
        results.update(engine.step())
    wanted = dict(zip([*tickets, late], [*alone, alone[0]], strict=True))
    assert set(results) == set(wanted) - {tickets[1], tickets[9]}
    for ticket, result in results.items():
        assert_same(result, wanted[ticket])
    engine.abort(tickets)
    assert engine.step() == []


def replaced(engine, monkeypatch, error):
    """Computing raises an error, after requests were scheduled."""

    def fail(*_, **__):
        raise error

    if hasattr(engine, "_runner"):
        monkeypatch.setattr(engine._runner, "run", fail)
        return
    model = getattr(engine, "_model", None)
    owner = (
        engine._engine.engine_core.engine_core.model_executor
        if model is None
        else model.module
    )
    monkeypatch.setattr(owner, "execute_model" if model is None else "forward", fail)


@in_process
@pytest.mark.parametrize("running", [False, True])
def test_after_ctrl_c_in_a_step_the_engine_goes_on(engine, monkeypatch, running):
    """What was half computed is lost, also from the prefix cache."""
    request = Generate(prompt(200, 91 + running), 6, watch_ids=REFLECTION)
    lost = [engine.submit(request) for _ in range(2)]
    if running:
        engine.step()
    with monkeypatch.context() as patch:
        replaced(engine, patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert dict(engine.step()) == dict.fromkeys(lost, Failed("interrupted"))
    after = generated(engine, request)
    assert running or after.cached_tokens == 0
    assert_same(after, generated(engine, request))


def holds(constraint, text):
    if constraint.form is ConstraintForm.JSON:
        value = json.loads(text)
        return (
            value["r"] in range(10) and value["f"] in ("yes", "no") and len(value) == 2
        )
    if constraint.form is ConstraintForm.REGEX:
        return re.fullmatch(constraint.text, text) is not None
    return text in constraint.value


@pytest.fixture(scope="module")
def tokenizer(tiny_llama):
    return load_training_tokenizer(tiny_llama)


@grammatical
def test_random_models_write_what_the_constraint_says(engine, tokenizer):
    wave = [
        Generate(prompt(20, start), 60, constraint=form)
        for start in range(3)
        for form in FORMS
    ]
    for request, result in zip(wave, serve(engine, wave), strict=True):
        assert isinstance(result, Generated), result
        text = tokenizer.decode(result.token_ids, skip_special_tokens=True)
        if result.finish is Finish.EOS:
            assert holds(request.constraint, text), text
        else:  # JSON allows any white space, which a random model may love
            assert request.constraint.form is ConstraintForm.JSON
            assert text.lstrip().startswith("{")


@grammatical
def test_log_probabilities_are_those_of_the_allowed_tokens(engine, tokenizer):
    digits = tuple(tokenizer.convert_tokens_to_ids(list("0123456789")))
    free = Generate(prompt(20), 1, watch_ids=(*digits, 3))
    free, bound = serve(
        engine, [free, replace(free, constraint=Constraint.choice([*"0123456789"]))]
    )
    allowed = free.watched[0, :10] - np.logaddexp.reduce(free.watched[0, :10])
    np.testing.assert_allclose(bound.watched[0, :10], allowed, atol=1e-4)
    assert bound.watched[0, 10] == -np.inf
    assert bound.token_logprobs[0] == pytest.approx(float(allowed.max()), abs=1e-4)


@grammatical
def test_what_cannot_be_compiled_fails_alone_and_a_stop_id_may_follow_a_complete_form(
    engine, tokenizer
):
    forms = (Constraint.regex("(["), Constraint.json({"type": "nonsense"}), FORMS[2])
    stop = (tokenizer.bos_token_id,)
    *failed, good = serve(
        engine,
        [Generate(prompt(8), 30, stop_ids=stop, constraint=form) for form in forms],
    )
    assert all(isinstance(one, Failed) and "\n" not in one.reason for one in failed)
    assert good.finish in (Finish.STOP, Finish.EOS)
    assert holds(FORMS[2], tokenizer.decode(good.token_ids, skip_special_tokens=True))


QUESTIONS = [
    f"Who wrote novel {number}?" + " It is about the sea." * (number % 7)
    for number in range(32)
]
OPTIONS = {
    "max_segments": 2,
    "segment_tokens": 12,
    "mode": "always",
    "beam": 2,
    "passages": 3,
}


def search(queries, k):
    return [
        [Passage(f"{len(query)}-{rank}", f"{query} Text {rank}.") for rank in range(k)]
        for query in queries
    ]


@pytest.fixture(scope="module")
def rag(engine, tiny_llama):
    return SelfRAG.from_pretrained(tiny_llama, engine=engine, retriever=search)


@pytest.fixture(scope="module")
def singles(rag):
    return [rag.generate(question, **OPTIONS) for question in QUESTIONS]


def same(one, other):
    scores = [segment.score for segment in one.segments]
    return one.text == other.text and [
        segment.score for segment in other.segments
    ] == pytest.approx(scores, abs=1e-3)


@pytest.fixture(scope="module")
def judged(rag, tiny_llama):
    tokenizer = load_training_tokenizer(tiny_llama)
    tokenizer.chat_template = TEMPLATE
    judge = Answerability.on(EngineExecutor(rag.engine, tokenizer))
    return lambda number: (
        judge(QUESTIONS[number], search([QUESTIONS[number]], 1)[0]).answerable
    )


def test_32_threads_with_answers_and_intrinsics_get_what_single_calls_get_while_some_leave_early(
    rag, singles, judged
):
    alone = [judged(number) for number in range(1, 32, 4)]

    def ask(number):
        if number % 4 == 1:
            return judged(number)
        pieces = rag.stream(QUESTIONS[number], **OPTIONS)
        if number % 4 == 0:
            next(pieces)
            pieces.close()
            return None
        return [piece for piece in pieces if isinstance(piece, Answer)][-1]

    found = at_once(32, ask)
    assert found[1::4] == pytest.approx(alone, abs=1e-3)
    assert all(
        same(found[number], singles[number]) for number in range(32) if number % 4 > 1
    )
    # one answer for all would prove nothing
    assert len({answer.text for answer in singles}) > 16


def test_cached_tokens_are_whole_blocks_of_the_prompt(vllm_engine):
    """Blocks of 32: vLLM's default of 128 on a CPU never finds a short instruction again."""
    found = [generated(vllm_engine, Generate(prompt(130, 130), 2)) for _ in range(2)]
    assert [one.cached_tokens for one in found] == [0, 128]
    assert_same(*found)


def test_a_users_log_file_stays_open(vllm_engine, tmp_path):
    """vLLM's default configuration closes all handlers, and a file that was opened for writing stays closed."""
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging

    handler = logging.FileHandler(tmp_path / "mine.log", mode="w")
    with quiet_import():
        configure_logging(LoggingConfig())
    handler.handle(
        logging.LogRecord("mine", logging.INFO, "", 0, "still heard", None, None)
    )
    handler.close()
    assert (tmp_path / "mine.log").read_text() == "still heard\n"


def test_too_small_a_cache_is_one_clear_line_and_the_environment_is_restored(
    vllm_engine, tiny_llama, monkeypatch
):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")  # would win over our own
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    unset = ("VLLM_ENABLE_V1_MULTIPROCESSING", "LD_PRELOAD")
    for name in unset:
        monkeypatch.delenv(name, raising=False)
    with refused(r"vLLM cannot load .*: ValueError: .*KV cache"):
        VLLMEngine.load(
            VLLMConfig(str(tiny_llama), dtype="float32", kv_cache_gib=0.0001)
        )
    assert (os.environ["VLLM_CPU_KVCACHE_SPACE"], os.environ["VLLM_LOGGING_LEVEL"]) == (
        "7",
        "DEBUG",
    )
    assert not set(unset) & set(os.environ)


def test_it_closes_after_the_groups_of_the_process_are_gone(vllm_engine):
    """Training, or another engine that was closed, takes down the process groups that all of vLLM shares."""
    vllm = MagicMock()
    vllm.engine_core.shutdown.side_effect = ValueError(
        "Invalid process group specified"
    )
    engine = VLLMEngine(vllm)
    engine.close()
    vllm.engine_core.shutdown.assert_called_once()
    with pytest.raises(EngineError, match="closed"):
        engine.submit(Generate(prompt(5), 1))


def test_it_runs_in_this_process_and_dies_in_one_clear_line(
    vllm_engine, monkeypatch, capfd
):
    """The last of this file: the engine cannot be used afterwards."""
    assert type(vllm_engine._engine.engine_core).__name__ == "InprocClient"
    vllm_engine.submit(Generate(prompt(20), 4))
    capfd.readouterr()
    replaced(vllm_engine, monkeypatch, RuntimeError("out of\nmemory"))
    for call in (
        vllm_engine.step,
        vllm_engine.step,
        lambda: vllm_engine.submit(Generate(prompt(20), 4)),
    ):
        with refused(r"stopped working \(RuntimeError: out of memory\); load it"):
            call()
    assert capfd.readouterr().out == ""  # vLLM dumps its whole configuration otherwise
    vllm_engine.abort([0])
    vllm_engine.close()
    vllm_engine.close()
