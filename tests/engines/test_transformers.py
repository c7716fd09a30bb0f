"""The transformers engine: equal to an unbatched loop without cache, computes nothing twice, fails in one line."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_files import read_json, table, write_json
from lora_on_the_spot import save_adapter
from pump import assert_same, generated, prompt, serve
from refusals import refused
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfrag.common.errors import EngineError
from selfrag.engines.batching import PrefixCache, look_up
from selfrag.engines.transformers import TransformersConfig, TransformersEngine, draw
from selfrag.engines.transformers_model import LoadedModel
from selfrag.reflection.requests import Finish, Generate, Generated

pytestmark = pytest.mark.engine

CONTEXT = 160
WATCH = (3, 4, 50, 300)
REFLECTION = tuple(range(400, 415))
"""Ids of the 15 reflection tokens."""


def load(path, **options):
    return TransformersEngine.load(TransformersConfig(str(path), **options))


class Reference:
    """One sequence at a time, everything recomputed for each token; with an adapter as PEFT runs it."""

    def __init__(self, path, adapter=None):
        self.model = AutoModelForCausalLM.from_pretrained(path).eval()
        self.eos = AutoTokenizer.from_pretrained(path).eos_token_id
        if adapter is not None:
            from peft import PeftModel

            self.model = PeftModel.from_pretrained(self.model, adapter).eval()

    @torch.inference_mode()
    def __call__(self, request):
        ids, logprobs, watched, finish = list(request.prompt_ids), [], [], None
        while finish is None:
            row = torch.log_softmax(
                self.model(input_ids=torch.tensor([ids])).logits[0, -1].float(), dim=-1
            )
            allowed = list(
                range(len(row)) if request.allowed_ids is None else request.allowed_ids
            )
            new = allowed[int(row[allowed].argmax())]
            ids.append(new)
            logprobs.append(float(row[new]))
            watched.append(row[list(request.watch_ids)].numpy())
            ends = {
                Finish.EOS: new == self.eos,
                Finish.STOP: new in request.stop_ids,
                Finish.BUDGET: len(logprobs) == request.max_tokens,
                Finish.CONTEXT: len(ids) == CONTEXT,
            }
            finish = next((end for end, holds in ends.items() if holds), None)
        return Generated(
            tuple(ids[len(request.prompt_ids) :]),
            tuple(logprobs),
            np.stack(watched),
            finish,
        )


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gpt2"])
def checkpoint(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference(checkpoint)


@pytest.fixture(scope="module", params=[0, 3])
def engine(checkpoint, request):
    engine = load(
        checkpoint,
        max_model_len=CONTEXT,
        max_batch=4,
        max_prefill_tokens=40,
        speculate=request.param,
    )
    yield engine
    engine.close()


# Prompts over few ids share prefixes, repeat and contain one another; that is what batching must survive.
STEMS = [(7, 8, 9) * 8, (7, 8, 9) * 8 + (40,) * 20, (50, 51) * 10, ()]


TAILS = st.lists(st.integers(5, 60), min_size=1, max_size=12).map(tuple)
REQUESTS = st.builds(
    Generate,
    prompt_ids=st.builds(
        lambda stem, tail: (stem + tail)[:60], st.sampled_from(STEMS), TAILS
    ),
    max_tokens=st.integers(1, 12),
    stop_ids=st.sampled_from([(), REFLECTION[:3], tuple(range(0, 400, 9))]),
    allowed_ids=st.none()
    | st.lists(st.integers(0, 399), min_size=1, max_size=6, unique=True).map(tuple),
    watch_ids=st.sampled_from([(), REFLECTION, (3,)]),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(REQUESTS, min_size=1, max_size=7))
def test_any_batch_gives_what_each_request_gives_alone(engine, reference, batch):
    for got, request in zip(serve(engine, batch), batch, strict=True):
        assert_same(got, reference(request))


def test_internals_are_those_of_a_pass_over_the_whole_text(checkpoint, engine):
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, attn_implementation="eager"
    ).eval()
    prompts = [STEMS[1], STEMS[1] + (5, 6, 7), (9, 8)]
    counts = [43, 2, 1]
    requests = [
        Generate(ids, 3, inspect=count)
        for ids, count in zip(prompts, counts, strict=True)
    ]
    for served in (serve(engine, requests), serve(engine, requests[::-1])[::-1]):
        for ids, count, result in zip(prompts, counts, served, strict=True):
            with torch.inference_mode():
                output = model(
                    input_ids=torch.tensor([ids]),
                    output_attentions=True,
                    output_hidden_states=True,
                )
            inside = result.internals
            logprobs = torch.log_softmax(output.logits[0], dim=-1)
            entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
            expected = entropies[-count - 1 : -1]
            assert inside.entropies == pytest.approx(expected.numpy(), abs=1e-4)
            attention = output.attentions[-1][0].mean(dim=0)[-count:]
            assert inside.attention == pytest.approx(attention.numpy(), abs=1e-4)
            middle = output.hidden_states[model.config.num_hidden_layers // 2][0, -1]
            assert inside.state == pytest.approx(middle.numpy(), abs=1e-3)
    usual, too_many, negative = serve(
        engine,
        [
            Generate((9, 8), 3),
            Generate((9, 8), 3, inspect=2),
            Generate((9, 8), 3, seed=-1),
        ],
    )
    assert usual.internals is None
    assert too_many.reason.startswith("inspect=2, seed=None; give 0 to 1, ")
    assert negative.reason.startswith("inspect=0, seed=-1; ")


def test_draws_are_random_and_the_same_for_a_seed(engine):
    requests = [Generate((7, 8, 9), 8, seed=seed) for seed in range(6)]
    together = [result.token_ids for result in serve(engine, requests)]
    alone = [serve(engine, [request])[0].token_ids for request in requests]
    assert together == alone
    logprobs = torch.log(torch.tensor([0.7, 0.2, 0.1]))
    drawn = [int(draw(logprobs, seed, 3)) for seed in range(3000)]
    shares = np.bincount(drawn) / len(drawn)
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def test_long_answers_outgrow_their_buffers_up_to_the_end_of_the_context(
    engine, reference
):
    never_ends = tuple(range(3, 200))
    wave = [
        Generate((9, 10 + i), 150 - 40 * i, allowed_ids=never_ends) for i in range(3)
    ]
    full = Generate((5,) * (CONTEXT - 3), 50, allowed_ids=(8, 9))
    wave += [full, replace(full, max_tokens=3)]
    found = serve(engine, wave)
    for got, request in zip(found, wave, strict=True):
        assert_same(got, reference(request))
    assert [one.finish for one in found[-2:]] == [Finish.CONTEXT, Finish.BUDGET]


def test_drafts_are_what_followed_the_longest_ending_at_its_last_place():
    assert look_up((1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3), 4) == [4, 9, 2, 3]
    assert look_up((8, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3), 2) == [5, 1]
    assert look_up((1, 1, 1, 1), 4) == [1]
    for ids in ((), (1,), (1, 2, 3, 4), (1, 2, 1)):
        assert look_up(ids, 4) == []


def test_right_drafts_save_passes_and_wrong_ones_change_nothing(counting, monkeypatch):
    requests = [
        Generate((9, 10 + i) * (4 + i), 60 - 25 * i, watch_ids=(3,)) for i in range(3)
    ]
    plain, passes = counting()
    expected = serve(plain, requests)
    alone = len(passes)
    texts = [
        (*request.prompt_ids, *result.token_ids)
        for request, result in zip(requests, expected, strict=True)
    ]

    def draft(ids, most):
        text = next(text for text in texts if text[: len(ids)] == ids)
        following = list(text[len(ids) : len(ids) + most])
        if len(ids) % 3 == 0:
            following[-1] += 1  # wrong at its end, or from its start
        return following

    monkeypatch.setattr("selfrag.engines.transformers.look_up", draft)
    drafting, passes = counting(speculate=4)
    passes.clear()
    for drafted, result in zip(serve(drafting, requests), expected, strict=True):
        assert_same(drafted, result)
    assert len(passes) < alone / 2


def test_the_cache_goes_by_the_name_that_the_model_takes():
    """`past_key_values` is `cache` in newer versions of transformers, which warn of the old name."""

    class Newer(torch.nn.Module):
        def forward(self, input_ids, cache=None, **rest):
            assert cache == "kept"
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 4))

    model = LoadedModel(Newer(), torch.device("cpu"), 8, 4, frozenset())
    ids = torch.ones(1, 2, dtype=torch.int64)
    assert model.last_logits(ids, ids, ids, "kept", None).shape == (1, 1, 4)
    assert model.last_logits(ids, ids, ids, "kept", None, 2).shape == (1, 2, 4)


# What is not computed twice.

QUESTION = tuple(range(5, 105))
PASSAGES = [tuple(range(110 + 20 * k, 140 + 20 * k)) for k in range(5)]


def computed(passes, *adapters):
    return sum(tokens for name, tokens in passes if not adapters or name in adapters)


def candidates(question=QUESTION, tokens=1):
    return [
        Generate(question + passage, tokens, watch_ids=WATCH) for passage in PASSAGES
    ]


def test_cached_tokens_add_up_to_what_was_not_computed(counting):
    engine, passes = counting(max_batch=32)
    task = tuple(range(300, 340))  # an instruction that all questions share
    wave = [r for first in (5, 6, 7) for r in candidates((*task, first, *QUESTION))]
    results = serve(engine, wave)
    assert sum(
        len(r.prompt_ids) - g.cached_tokens for r, g in zip(wave, results, strict=True)
    ) == computed(passes)
    assert computed(passes) == 40 + 3 * 101 + 15 * 30


def test_a_decision_pays_for_the_candidates_and_a_candidate_for_the_next_segment(
    counting,
):
    engine, passes = counting()
    assert generated(engine, Generate(QUESTION, 1)).cached_tokens == 0
    results = serve(engine, candidates(tokens=8))
    assert [result.cached_tokens for result in results] == [100] * 5
    best = candidates()[2].prompt_ids + results[2].token_ids
    before = computed(passes)
    # Of the answer so far only its newest token had not been through the model.
    assert generated(engine, Generate((*best, 7), 1)).cached_tokens == len(best) - 1
    assert computed(passes) - before == 2


def test_the_budget_bounds_what_is_kept(counting):
    engine, _ = counting(prefix_cache_mib=1)
    serve(engine, [Generate(tuple(range(5 + i, 305 + i)), 1) for i in range(30)])
    assert 0 < engine._prefixes.nbytes <= 1 << 20


def test_rows_run_together_and_leave_when_finished(counting):
    engine, passes = counting(max_batch=4)
    serve(
        engine, [Generate((5 + i, 6), 2 + 2 * i, allowed_ids=(8, 9)) for i in range(4)]
    )
    assert [tokens for _, tokens in passes] == [8, 4, 3, 3, 2, 2, 1, 1]


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple)


@given(st.lists(tokens, max_size=15), tokens, st.integers(0, 30))
def test_the_cache_finds_the_longest_and_keeps_to_its_budget(stored, wanted, budget):
    cache = PrefixCache(budget)
    for one in stored:
        cache.put(None, one, np.array(one, np.int8))
        cache.put("other", one, np.array(one, np.int8))
    payload, length = cache.longest(None, wanted)
    assert length == max(
        (n for n in range(len(wanted) + 1) for one in stored if one[:n] == wanted[:n]),
        default=0,
    )
    assert length == 0 or tuple(payload[:length]) == wanted[:length]
    assert all(cache.longest(None, one)[1] == len(one) for one in stored)
    assert cache.longest("third", wanted) == (None, 0)
    cache.trim()
    assert cache.nbytes <= budget


def test_the_least_recently_used_goes_first():
    cache, kept = PrefixCache(4), np.zeros(2, np.int8)
    for ids in ((1, 1), (2, 2), (3, 3)):
        cache.put(None, ids, kept)
    assert len(cache) == 3  # nothing goes before trim
    assert cache.longest(None, (1, 5)) == (kept, 1)
    cache.trim()
    assert cache.longest(None, (2, 2)) == (None, 0)
    assert cache.longest(None, (1, 1)) == (kept, 2)
    assert cache.nbytes == 4


# Adapters, plain and activated (which reuse what the base model computed).

INVOCATION = (1, 77, 78)
CONVERSATION = prompt(100)


@pytest.fixture(scope="module")
def adapters(tiny_llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    own = {"first": {"alora_invocation_tokens": list(INVOCATION)}, "plain": {}}
    own |= {"second": own["first"], "other": {}}
    return {
        name: save_adapter(tiny_llama, folder / name, seed=at, **own[name])
        for at, name in enumerate(own)
    }


def test_mixed_batches_give_the_numbers_of_peft(tiny_llama, adapters):
    engine = load(tiny_llama, adapters=adapters)
    assert (engine.limits.adapters, engine.limits.activated) == (
        set(adapters),
        {"first", "second"},
    )
    references = {
        None: Reference(tiny_llama),
        **{name: Reference(tiny_llama, path) for name, path in adapters.items()},
    }
    twice = (*CONVERSATION[:20], *INVOCATION)  # it acts from the last occurrence
    wave = [
        Generate(
            (*CONVERSATION[:cut], *INVOCATION, *tail), 5, watch_ids=WATCH, adapter=name
        )
        for cut in (1, 30, 100)
        for tail in ((), (5, 6), twice)
        for name in references
    ]
    results = serve(engine, wave)
    for request, result in zip(wave, results, strict=True):
        assert_same(result, references[request.adapter](request))
    assert len({result.token_logprobs for result in results}) == len(wave)


@pytest.mark.parametrize("cache", [0, 64])
def test_activated_adapters_of_one_wave_share_one_pass_of_the_base_model(
    counting, adapters, cache
):
    engine, passes = counting(adapters=adapters, prefix_cache_mib=cache)
    wave = [
        Generate((*CONVERSATION, *INVOCATION), 1, watch_ids=WATCH, adapter=name)
        for name in ("first", "second")
    ]
    assert [result.cached_tokens for result in serve(engine, wave)] == [0, 100]
    assert computed(passes, None) == 100
    assert computed(passes, "first") == computed(passes, "second") == 3


def test_a_plain_adapter_shares_nothing_with_the_base_model(counting, adapters):
    engine, passes = counting(adapters=adapters)
    names = (None, "plain", None, "plain")
    cached = [
        generated(engine, Generate(CONVERSATION, 1, adapter=name)).cached_tokens
        for name in names
    ]
    assert cached == [0, 0, 99, 99]
    assert computed(passes, "plain") == 101


def test_a_prompt_without_the_invocation_is_refused(counting, adapters):
    engine, passes = counting(adapters=adapters)
    prompts = (CONVERSATION, (*CONVERSATION, *INVOCATION))
    bad, good = serve(engine, [Generate(ids, 1, adapter="first") for ids in prompts])
    assert "invocation tokens [1, 77, 78]" in bad.reason
    assert isinstance(good, Generated)
    assert computed(passes, "first") == 3


def test_what_is_no_plain_lora_is_refused_with_the_way_out(tiny_llama, tmp_path):
    rows = save_adapter(tiny_llama, tmp_path / "rows", trainable_token_indices=[3, 4])
    with pytest.raises(EngineError, match=r"adapter 'rows' .*trainable_token_indices"):
        load(tiny_llama, adapters={"rows": rows})


# What goes wrong.


NONSENSE = """
{"dtype": "int8"} | dtype='int8': choose one of auto, float32, bfloat16, float16
{"max_batch": 0} | max_batch=0: give a whole number of at least 1
{"max_model_len": 1} | max_model_len=1: give a whole number of at least 2
{"max_prefill_tokens": 0} | max_prefill_tokens=0: give a whole number of at least 1
{"prefix_cache_mib": -1} | prefix_cache_mib=-1: give a whole number of at least 0
{"speculate": -1} | speculate=-1: give a whole number of at least 0
"""


@pytest.mark.parametrize("options, message", table(NONSENSE))
def test_nonsense_is_named(options, message):
    with refused(f"^{message}$"):
        TransformersConfig("anything", **json.loads(options))


UNUSABLE = r"""
{"num_hidden_layers": 3} | null | lacks 9 of its weights, such as model\.layers\.2\.
LINEAR | null | layers of kind linear_attention; use the vllm engine
{"max_position_embeddings": 512} | 9999 | max_model_len=9999, but model .* takes at most 512 tokens here
{"sliding_window": 64, "model_type": "mistral"} | 33 | max_model_len=33, but .* takes at most 32 tokens here
{} | null | cannot be loaded
"""
"""No weights are made up."""
LINEAR = (
    '{"layer_types": ["full_attention", "linear_attention"], "model_type": "qwen2"}'
)


@pytest.mark.parametrize("changed, most, said", table(UNUSABLE))
def test_checkpoints_that_cannot_be_used(tmp_path, tiny_llama, changed, most, said):
    shutil.copytree(tiny_llama, tmp_path, dirs_exist_ok=True)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    if changed == "{}":
        weights.write_bytes(weights.read_bytes()[:1000])
    changes = json.loads(changed.replace("LINEAR", LINEAR))
    write_json(config, read_json(config) | changes)
    with refused(said):
        load(tmp_path, max_model_len=json.loads(most))


def test_16_bit_weights_run(tiny_llama):
    engine = load(tiny_llama, dtype="bfloat16")
    assert (
        generated(engine, Generate((5, 6, 7), 3, watch_ids=(3,))).watched.dtype
        == "float32"
    )


def test_a_failing_model_is_one_line_and_the_engine_stays_dead(tiny_llama, monkeypatch):
    engine = load(tiny_llama)

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")

    monkeypatch.setattr(engine._model.module, "forward", fail)
    engine.submit(Generate((5, 6, 7), 3))
    for call in (engine.step, engine.step, lambda: engine.submit(Generate((5,), 1))):
        with refused(r"out of memory.*max_batch"):
            call()
    engine.abort([0])
    engine.close()


def test_a_closed_engine_says_so(tiny_llama):
    engine = load(tiny_llama)
    engine.submit(Generate((5, 6), 5))
    engine.step()
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        engine.step()


def test_no_finite_probability_fails_that_request_only(tiny_llama):
    engine = load(tiny_llama)
    with torch.no_grad():
        engine._model.module.get_input_embeddings().weight[77] = torch.nan
    bad, good = serve(engine, [Generate((5, 6, 77), 4), Generate((5, 6, 7), 4)])
    assert "dtype float32" in bad.reason
    assert_same(good, Reference(tiny_llama)(Generate((5, 6, 7), 4)))
