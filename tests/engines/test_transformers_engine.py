"""The transformers engine against an unbatched loop without cache: same tokens, same log-probabilities, any batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pump import serve
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.engines.transformers_model import LoadedModel
from selfrag.reflection.vocabulary import Vocabulary

pytestmark = pytest.mark.engine


@dataclass
class Reference:
    """One sequence at a time, everything recomputed for each token."""

    path: Path
    context: int

    def __post_init__(self):
        self.model = AutoModelForCausalLM.from_pretrained(self.path).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)

    @torch.inference_mode()
    def __call__(self, request: Generate) -> Generated:
        ids, logprobs, watched = list(request.prompt_ids), [], []
        while True:
            row = torch.log_softmax(self.model(torch.tensor([ids])).logits[0, -1].float(), dim=-1)
            masked = row.clone()
            if request.allowed_ids is not None:
                masked[[i for i in range(len(row)) if i not in request.allowed_ids]] = -torch.inf
            new = int(masked.argmax())
            ids.append(new)
            logprobs.append(float(row[new]))
            watched.append(row[list(request.watch_ids)].numpy())
            count = len(logprobs)
            if new == self.tokenizer.eos_token_id:
                finish = Finish.EOS
            elif new in request.stop_ids:
                finish = Finish.STOP
            elif count == request.max_tokens:
                finish = Finish.BUDGET
            elif len(ids) == self.context:
                finish = Finish.CONTEXT
            else:
                continue
            return Generated(tuple(ids[-count:]), tuple(logprobs), np.stack(watched), finish)


CONTEXT = 160


def load(path: Path, **options) -> TransformersEngine:
    options = {"max_model_len": CONTEXT, "max_batch": 4, **options}
    return TransformersEngine.load(TransformersConfig(str(path), **options))


def assert_same(got: Generated | Failed, want: Generated) -> None:
    assert isinstance(got, Generated), got
    assert got.token_ids == want.token_ids
    assert got.finish == want.finish
    np.testing.assert_allclose(got.token_logprobs, want.token_logprobs, atol=1e-4)
    assert got.watched.dtype == np.float32
    assert got.watched.shape == want.watched.shape
    np.testing.assert_allclose(got.watched, want.watched, atol=1e-4)


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_llama_spm", "tiny_gpt2", "tiny_gpt2_untied"])
def checkpoint(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def reference(checkpoint) -> Reference:
    return Reference(checkpoint, CONTEXT)


@pytest.fixture(scope="module")
def engine(checkpoint):
    engine = load(checkpoint)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vocabulary(checkpoint) -> Vocabulary:
    return Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(checkpoint))


# Prompts over few ids share prefixes, repeat and contain one another; that is what batching must survive.
def prompts(longest: int = 60):
    stem = st.sampled_from([(7, 8, 9) * 8, (7, 8, 9) * 8 + (40,) * 20, (50, 51) * 10, ()])
    return st.builds(
        lambda head, tail: (head + tuple(tail))[:longest],
        stem,
        st.lists(st.integers(5, 60), min_size=1, max_size=12),
    )


def requests(vocabulary: Vocabulary):
    some = st.lists(st.integers(0, 399), min_size=1, max_size=6, unique=True).map(tuple)
    return st.builds(
        Generate,
        prompt_ids=prompts(),
        max_tokens=st.integers(1, 12),
        stop_ids=st.sampled_from([(), vocabulary.retrieve, tuple(range(0, 400, 9))]),
        allowed_ids=st.one_of(st.none(), some),
        watch_ids=st.sampled_from([(), vocabulary.watch, (3,)]),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch_gives_what_each_request_gives_alone(engine, reference, vocabulary, data):
    batch = data.draw(st.lists(requests(vocabulary), min_size=1, max_size=7))
    for got, request in zip(serve(engine, batch), batch, strict=True):
        assert_same(got, reference(request))


def test_a_long_answer_outgrows_its_buffers(checkpoint, reference, vocabulary):
    never_ends = tuple(i for i in range(200) if i not in vocabulary.control and i > 2)
    wave = [Generate((9, 10 + i), 150 - 40 * i, allowed_ids=never_ends) for i in range(3)]
    for got, request in zip(serve(load(checkpoint), wave), wave, strict=True):
        assert_same(got, reference(request))


def test_context_is_not_taken_for_the_budget(engine):
    full = Generate((5,) * (CONTEXT - 3), 50, allowed_ids=(8, 9))
    got_full, got_exact = serve(engine, [full, replace(full, max_tokens=3)])
    assert (len(got_full.token_ids), got_full.finish) == (3, Finish.CONTEXT)
    assert (len(got_exact.token_ids), got_exact.finish) == (3, Finish.BUDGET)


def test_abort_is_silent_and_spares_the_others(engine, reference):
    wave = [Generate((5, 6 + i), 12, allowed_ids=(8, 9, 10 + i)) for i in range(7)]
    tickets = [engine.submit(request) for request in wave]
    engine.step()
    engine.abort([tickets[1], tickets[6], 10**9])
    results = {}
    for _ in range(60):
        results.update(engine.step())
    assert set(results) == {ticket for i, ticket in enumerate(tickets) if i not in (1, 6)}
    for ticket, result in results.items():
        assert_same(result, reference(wave[tickets.index(ticket)]))
    engine.abort(tickets)


def test_the_cache_goes_by_the_name_that_the_model_takes():
    """`past_key_values` is `cache` in newer versions of transformers, which warn of the old name."""

    class Newer(torch.nn.Module):
        def forward(self, input_ids, cache=None, **rest):
            assert cache == "kept"
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 4))

    model = LoadedModel(Newer(), torch.device("cpu"), 8, 4, frozenset())
    ids = torch.ones(1, 2, dtype=torch.int64)
    assert model.last_logits(ids, ids, ids, "kept", None).shape == (1, 4)
