"""A real `vllm serve` on the CPU: its limits, OpenAI's routes alone, interpretation and teachers, and its death."""

import json
import random
import threading
import time
from contextlib import closing

import httpx
import numpy as np
import pytest
from loopback import Answering, loopback
from pump import assert_same, generated, prompt, serve

from critic.cases import GROUPS, Case
from critic.teacher.endpoint import EndpointTeacher, TeacherConfig
from critic.teacher.run import LabelOutcome
from critic.teacher.settings import LabelConstraint
from retrieval.passage import Passage
from selfrag.common.errors import EngineError
from selfrag.engines.http import COMPLETIONS, TOKENS, HTTPConfig, HTTPEngine
from selfrag.reflection.requests import Failed, Finish, Generate

pytestmark = pytest.mark.engine

CONTEXT = 8192
WATCH = tuple(range(400, 415))


def load(url, model, **options):
    return HTTPEngine.load(
        HTTPConfig(url, model_dir=str(model), max_concurrency=8, **options)
    )


@pytest.fixture
def engine(vllm_server, tiny_llama):
    with closing(load(vllm_server.url, tiny_llama)) as engine:
        yield engine


def test_limits_the_end_of_the_context_and_cached_tokens_are_told(engine):
    limits = engine.limits
    assert (limits.max_model_len, limits.vocab_size, limits.adapters) == (
        CONTEXT,
        415,
        {"extra"},
    )
    full = generated(engine, Generate(prompt(CONTEXT - 2), 6))
    assert (full.finish, len(full.token_ids)) == (Finish.CONTEXT, 2)
    assert [
        generated(engine, Generate(prompt(100, 5), 2)).cached_tokens for _ in range(2)
    ] == [0, 96]


def test_every_watched_id_comes_back(engine):
    """The server cuts each position at `logprobs` entries; the last watched id must survive that."""
    rare = generated(engine, Generate(prompt(30), 6, watch_ids=WATCH))
    assert rare.watched.shape == (6, 15)
    doubled = generated(
        engine, Generate(prompt(30), 6, watch_ids=(rare.token_ids[0], *WATCH[::-1]))
    )
    assert doubled.watched[0, 0] == pytest.approx(rare.token_logprobs[0], abs=1e-5)
    np.testing.assert_allclose(doubled.watched[:, :0:-1], rare.watched, atol=1e-5)
    most = engine.limits.max_watch
    good, failed = serve(
        engine,
        [Generate(prompt(30), 2, watch_ids=tuple(range(n))) for n in (most, most + 1)],
    )
    assert good.watched.shape == (2, 19)
    assert isinstance(failed, Failed)


def test_aborted_requests_free_the_server(engine):
    tickets = [engine.submit(Generate(prompt(10, i), 240)) for i in range(8)]
    time.sleep(0.2)
    engine.abort(tickets)
    generated(engine, Generate(prompt(30), 4))
    assert engine.step() == []


@pytest.fixture
def gateway(vllm_server):
    """Starts a gateway that passes only OpenAI's routes on, without fields of some names; gives its address."""
    started = []

    def start(*drop):
        class Gateway(Answering):
            def do_GET(self):
                self.pass_on("GET", None)

            def do_POST(self):
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.pass_on(
                    "POST",
                    {name: value for name, value in given.items() if name not in drop},
                )

            def pass_on(self, method, given):
                if self.path.startswith("/v1/"):
                    reply = httpx.request(
                        method, vllm_server.url + self.path, json=given, timeout=60
                    )
                    self.answer(reply.status_code, reply.content)
                else:
                    self.answer(404, b'{"detail": "Not Found"}')

        started.append(loopback(Gateway))
        return started[-1].url

    yield start
    for server in started:
        server.stop()


def test_both_routes_give_the_same(gateway, engine, tiny_llama):
    draw = random.Random(0)
    requests = [
        Generate(
            prompt(draw.randrange(2, 60), seed)
            if seed % 2
            else prompt(draw.randrange(2, 60)),
            draw.randrange(1, 8),
            watch_ids=WATCH if seed % 3 else (),
            stop_ids=tuple(range(seed % 5, 200, 7)) if seed % 4 == 0 else (),
            adapter="extra" if seed % 5 == 0 else None,
        )
        for seed in range(50)
    ] + [Generate(prompt(30), 1, allowed_ids=WATCH, watch_ids=WATCH)]
    with closing(load(gateway(), tiny_llama)) as stock:
        assert (stock._client.wire, engine._client.wire) == (COMPLETIONS, TOKENS)
        assert stock.limits == engine.limits
        ours = serve(stock, requests)
    for one, other in zip(ours, serve(engine, requests), strict=True):
        assert_same(one, other, 1e-3)
    assert {one.finish for one in ours} >= {Finish.STOP, Finish.BUDGET}


@pytest.mark.parametrize(
    "lost",
    ["logprob_token_ids", "return_token_ids", "return_tokens_as_token_ids", "logprobs"],
)
def test_a_gateway_that_drops_a_field_is_refused_before_anything_is_asked(
    gateway, tiny_llama, lost, monkeypatch
):
    monkeypatch.setenv("VLLM_API_KEY", "very-secret")
    with pytest.raises(
        EngineError, match="gives no log-probabilities of token ids"
    ) as found:
        load(gateway(lost), tiny_llama)
    assert "very-secret" not in str(found.value)


PASSAGE = Passage("p", "The Seine flows through Paris.", "Seine")
CASES = [
    Case.of("Retrieve", "Which river flows through Paris?"),
    Case.of("Retrieve", "Which river?", "It is long.", "It is the Seine.", PASSAGE),
    Case.of("IsRel", "Which river flows through Paris?", evidence=PASSAGE),
    Case.of(
        "IsSup",
        "Which river flows through Paris?",
        output="The Seine.",
        evidence=PASSAGE,
    ),
    Case.of(
        "IsUse", "Which river flows through Paris?", output="The Seine <|im_end|>."
    ),
]


def label(server, constraint):
    config = TeacherConfig(server.url, "tiny", constraint, retries=0, max_tokens=40)
    found = dict(EndpointTeacher(config).label(CASES))
    return [found[position] for position in range(len(CASES))]


def test_a_teacher_holds_a_random_model_to_the_labels(vllm_server):
    found = label(vllm_server, LabelConstraint.AUTO)
    for case, reply in zip(CASES, found, strict=True):
        assert (reply.outcome, reply.constraint) == (
            LabelOutcome.LABELLED,
            LabelConstraint.CHOICE,
        )
        assert reply.label in GROUPS[case.group].names
        assert reply.prompt_tokens > 500
        assert reply.completion_tokens > 0
    assert [reply.label for reply in found] == [
        reply.label for reply in label(vllm_server, LabelConstraint.CHOICE)
    ]


def test_server_killed_in_the_middle_is_one_clear_line(vllm_server, tiny_llama):
    """The last of this file: the server does not come back."""
    engine = load(vllm_server.url, tiny_llama, retries=1, backoff=0.1)
    for i in range(7):
        engine.submit(Generate(prompt(10, i), 1000))
    threading.Timer(0.1, vllm_server.kill).start()

    def ask():
        for _ in range(1000):  # one of them is under way when the server dies
            serve(engine, [Generate(prompt(10, 9), 1000)])

    with pytest.raises(
        EngineError, match=f"no server at {vllm_server.url} after 2 attempts"
    ) as caught:
        ask()
    assert "\n" not in str(caught.value)
    engine.close()
