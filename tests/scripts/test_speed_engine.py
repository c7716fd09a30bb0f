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


def test_every_way_does_the_work_that_it_is_named_for(report):
    for form in report.forms:
        ours, floor = form.ours.work, form.floor.work
        for count in ("requests", "prompt_tokens", "generated_tokens"):
            assert getattr(ours, count) == getattr(floor, count)
        assert 0 < form.least_tokens <= ours.prompt_tokens - ours.cached_tokens
        exact = [same for name, same in form.same_text.items() if "most probable" not in name]
        assert exact == [1.0] * 4  # exact ablations do not change an answer
    ours, faithful, kind = report.forms[0].rivals
    assert faithful.work == kind.work
    assert faithful.work.requests == ours.work.requests == 2 * SIZES.passages
    assert faithful.work.generated_tokens >= ours.work.generated_tokens
    assert faithful.work.cached_tokens == 0
    assert report.forms[1].rivals[1].work.requests % SIZES.passages == 0
    assert json.loads(json.dumps(asdict(report)))["engine"]["in_process"] is True
    assert f"| {report.growth[0].questions} " in markdown(report)
    assert report.growth[0].peak_gib >= report.growth[0].loaded_gib > 0.1
