"""The endpoint teacher against a real `vllm serve` of a tiny model: every constraint on both routes."""

from __future__ import annotations

import json

import pytest
import tiny
from served_vllm import ServedVLLM

from critic.cases import GROUPS, Case
from critic.teacher.base import Api, Constraint, EndpointConfig, Outcome
from critic.teacher.endpoint import EndpointTeacher
from retrieval.passage import Passage

pytestmark = pytest.mark.engine

CONTEXT = 8_192
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
PASSAGE = Passage("p", "The Seine flows through Paris.", "Seine")
CASES = [
    Case("Retrieve", "Which river flows through Paris?"),
    Case("Retrieve", "Which river?", "It is long.", "It is the Seine.", PASSAGE),
    Case("IsRel", "Which river flows through Paris?", evidence=PASSAGE),
    Case("IsSup", "Which river flows through Paris?", output="The Seine.", evidence=PASSAGE),
    Case("IsUse", "Which river flows through Paris?", output="The Seine <|im_end|>."),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pytest.importorskip("vllm", reason="vllm is not installed")
    model = tiny.save_llama(tmp_path_factory.mktemp("teacher"), context=CONTEXT)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    log = tmp_path_factory.mktemp("served-teacher") / "log.txt"
    served = ServedVLLM(model, log, "--max-model-len", str(CONTEXT))
    served.ensure()
    yield served
    served.kill()


def ask(served, api, constraint, **options):
    config = EndpointConfig(served.url, "tiny", api, constraint, retries=0, max_tokens=40, **options)
    found = dict(EndpointTeacher(config).label(CASES))
    return [found[position] for position in range(len(CASES))]


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("constraint", [Constraint.CHOICE, Constraint.AUTO])
def test_structured_outputs_hold_a_random_model_to_the_labels(served, api, constraint) -> None:
    replies = ask(served, api, constraint)
    assert {reply.outcome for reply in replies} == {Outcome.LABELLED}, replies
    for case, reply in zip(CASES, replies, strict=True):
        assert reply.label in GROUPS[case.group].names
        assert reply.constraint == Constraint.CHOICE
        assert reply.prompt_tokens > 500
        assert reply.completion_tokens > 0
    assert [r.label for r in replies] == [r.label for r in ask(served, api, constraint)]


def test_a_schema_holds_it_where_labels_are_no_special_tokens(served) -> None:
    """The server leaves special tokens out of its text, so a reflection token is seen as no label, and set aside."""
    replies = ask(served, Api.CHAT, Constraint.SCHEMA)
    assert replies[0].outcome is Outcome.LABELLED or "cut at max_tokens" in replies[0].reason, replies[0]
    for reply in replies:
        assert reply.outcome is not Outcome.FAILED
        assert reply.raw.startswith("{")


@pytest.mark.parametrize("api", list(Api))
def test_label_scoring_reads_the_log_probabilities_of_the_server(served, api) -> None:
    for case, reply in zip(CASES, ask(served, api, Constraint.LOGPROBS, min_coverage=0.0), strict=True):
        if reply.outcome is Outcome.LABELLED:
            assert reply.coverage > 0
            assert reply.label in GROUPS[case.group].names
        else:  # a random model may have no letter among its twenty most probable tokens
            assert reply.reason.startswith("no label among the ")
            assert reply.coverage == 0.0


def test_a_prompt_that_does_not_fit_fails_alone(served) -> None:
    config = EndpointConfig(served.url, "tiny", Api.CHAT, Constraint.CHOICE, retries=0)
    long = Case("IsUse", "What?", output="word " * 4 * CONTEXT)
    replies = dict(EndpointTeacher(config).label([long, CASES[0]]))
    assert (replies[0].outcome, replies[1].outcome) == (Outcome.FAILED, Outcome.LABELLED)
    assert "status 400" in replies[0].reason
