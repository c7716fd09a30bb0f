"""The whole benchmark on a tiny random model: every way runs, and ways that must agree do."""

import json
from dataclasses import asdict

import pytest

from retrieval.passage import Passage
from selfrag.engines.vllm import VLLMConfig
from speed.decoding import benchmark, markdown
from speed.workload import FormSizes, Item, Sizes

pytestmark = [pytest.mark.engine, pytest.mark.slow]  # a benchmark, whole
pytest.importorskip("vllm", reason="vLLM is not installed")

FORM = FormSizes(questions=3, repeats=2, rivals=2, ablated=2, rounds=1)
SIZES = Sizes({"short": FORM, "long": FORM}, passages=2, growth=((1, 2),), rescored=5, settings=7)


@pytest.fixture(scope="module")
def report(tiny_llama):
    passages = tuple(Passage(str(i), f"Water boils at {i} degrees.", "Water") for i in range(2))
    items = [Item(f"At how many degrees does water boil, {i}?", passages) for i in range(3)]
    config = VLLMConfig(str(tiny_llama), kv_cache_gib=0.1)
    return benchmark(config, items, SIZES, lambda _: None)


def test_the_floor_does_the_same_work_as_ours(report):
    for form in report.forms:
        ours, floor = form.ours.work, form.floor.work
        assert (ours.requests, ours.prompt_tokens, ours.generated_tokens) == (
            floor.requests,
            floor.prompt_tokens,
            floor.generated_tokens,
        )
        assert 0 < form.least_tokens <= ours.prompt_tokens - ours.cached_tokens


def test_exact_ablations_do_not_change_an_answer(report):
    for form in report.forms:
        exact = [name for name in form.same_text if "most probable" not in name]
        assert len(exact) == 4
        assert [form.same_text[name] for name in exact] == [1.0] * 4


def test_rivals_do_the_work_of_the_official_loop(report):
    short, long = report.forms
    ours, faithful, kind = short.rivals
    assert faithful.work == kind.work
    assert faithful.work.requests == ours.work.requests == 2 * SIZES.passages
    assert faithful.work.generated_tokens >= ours.work.generated_tokens
    assert all(series.work.cached_tokens == 0 for series in (faithful, kind))
    assert long.rivals[1].work.requests % SIZES.passages == 0


def test_the_report_reads_as_tables_and_as_json(report):
    assert json.loads(json.dumps(asdict(report)))["engine"]["in_process"] is True
    text = markdown(report)
    assert "faithful rival" in text
    assert f"| {report.growth[0].questions} " in text
    assert report.growth[0].peak_gib >= report.growth[0].loaded_gib > 0.1
