"""The scorer against the tiny models themselves: exact probabilities, order, sharing, failures."""

import math
from dataclasses import replace

import pytest
from student_cases import case, labelled

from critic.student.judge import StudentCritic, distinguishing
from critic.student.prompt import Layout, Limits, PromptCodec
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.errors import EngineError, UserError
from selfrag.reflection.judgment import Source

SMALL = Limits(evidence=24, preceding=8, output=24, instruction=24)


@pytest.fixture(scope="module")
def engine(tiny_llama):
    engine = TransformersEngine.load(TransformersConfig(str(tiny_llama), dtype="float32"))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def model(tiny_llama):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_llama)


@pytest.fixture(scope="module")
def codecs(tiny_llama):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    return {style: PromptCodec.from_tokenizer(tokenizer, Layout(style), SMALL) for style in ("tokens", "words")}


def reference(model, prompt, option):
    """Log-probability of an option after a prompt, from one plain forward pass."""
    import torch

    ids = [*prompt.ids, *option]
    with torch.no_grad():
        found = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return math.fsum(float(found[i - 1, ids[i]]) for i in range(len(prompt.ids), len(ids)))


@pytest.mark.engine
@pytest.mark.parametrize("style", ["tokens", "words"])
def test_distribution_and_coverage_are_those_of_the_model(engine, model, codecs, style):
    codec = codecs[style]
    cases = [case(group, number) for group in ("Retrieve", "IsRel", "IsSup", "IsUse") for number in (0, 1)]
    for one, judgment in zip(cases, StudentCritic(engine, codec, exact=True).judge(cases), strict=True):
        prompt = codec.prompt(one)
        options = prompt.options
        assert not any(a == b[: len(a)] for a in options for b in options if a is not b)
        expected = [math.exp(reference(model, prompt, option)) for option in options]
        assert judgment.distribution == pytest.approx([p / sum(expected) for p in expected], rel=1e-3)
        assert judgment.coverage == pytest.approx(sum(expected), rel=1e-3)
        assert judgment.source is Source.JUDGE
        assert judgment.labels is one.labels


@pytest.mark.engine
def test_defect_31_any_number_of_cases_comes_back_in_order(engine, codecs):
    critic = StudentCritic(engine, codecs["tokens"])
    cases = [row.case for row in labelled()][:11]
    alone = [critic.judge([one])[0] for one in cases]
    for count in (0, 1, 11):
        together = critic.judge(cases[:count])
        assert len(together) == count
        for found, expected in zip(together, alone, strict=False):
            assert found.role == expected.role
            assert found.distribution == pytest.approx(expected.distribution, rel=1e-3)


def test_equal_prompts_are_asked_once_and_neighbours_share_their_beginning(engine, codecs):
    asked, seen = [], []
    critic = StudentCritic(_Recording(engine, asked), codecs["tokens"], progress=seen.append)
    judged = critic.judge([case("IsRel"), case("IsUse"), case("IsSup"), case("IsRel")])
    assert len(asked) == 3
    assert asked == sorted(asked, key=lambda request: request.prompt_ids)
    assert judged[0].distribution == judged[3].distribution
    assert sum(seen) == 4


class _Recording:
    """An engine that notes what it is asked."""

    def __init__(self, engine, asked):
        self._engine, self._asked = engine, asked
        self.limits, self.step, self.abort = engine.limits, engine.step, engine.abort

    def submit(self, request):
        self._asked.append(request)
        return self._engine.submit(request)


@pytest.mark.engine
def test_a_refused_request_is_an_error_and_leaves_the_engine_usable(engine, codecs):
    codec = codecs["tokens"]
    broken = replace(codec, token_ids={token: 10**6 + i for i, token in enumerate(codec.token_ids)})
    with pytest.raises(EngineError, match=r"could not judge a case: .*outside the vocabulary"):
        StudentCritic(engine, broken).judge([case("IsRel"), case("IsUse")])
    assert StudentCritic(engine, codecs["tokens"]).judge([case("IsRel")])[0] is not None
    long = replace(codecs["tokens"], limits=Limits(evidence=5000))
    with pytest.raises(UserError, match=r"max_model_len=1024; raise it"):
        StudentCritic(engine, long)


def test_options_are_read_up_to_where_they_differ():
    assert distinguishing([(1, 2, 3), (4, 5)]) == ((1,), (4,))
    assert distinguishing([(1, 2, 3), (1, 4, 5), (6, 7)]) == ((1, 2), (1, 4), (6,))
    assert distinguishing([(1,), (1, 2, 3)]) == ((1,), (1, 2))
