"""A real `vllm serve` on the CPU: its limits, OpenAI's routes alone, runs and teachers over it, and its death."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest
from pump import generated, prompt, serve
from served_vllm import ServedVLLM
from typer.testing import CliRunner

from critic.cases import GROUPS, Case
from critic.teacher.base import Api, Constraint, EndpointConfig, Outcome, Reply
from critic.teacher.endpoint import EndpointTeacher
from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.cli.main import app
from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.http import COMPLETIONS, TOKENS, HTTPConfig, HTTPEngine
from selfrag.errors import EngineError
from selfrag.evaluation.records import read_records
from selfrag.evaluation.runner import Model, Source, run_systems
from selfrag.experiments.self_interpretation.run import GridRun, read_grid

pytestmark = pytest.mark.engine

CONTEXT = 8192
WATCH = tuple(range(400, 415))


def load(url: str, model: Path, **options: Any) -> HTTPEngine:
    return HTTPEngine.load(HTTPConfig(url, model_dir=str(model), max_concurrency=8, **options))


@pytest.fixture
def engine(vllm_server: ServedVLLM, tiny_llama: Path) -> Iterator[HTTPEngine]:
    engine = load(vllm_server.url, tiny_llama)
    yield engine
    engine.close()


def test_the_server_tells_its_limits(engine: HTTPEngine) -> None:
    assert engine.limits.max_model_len == CONTEXT
    assert engine.limits.vocab_size == 415
    assert engine.limits.adapters == {"extra"}


def test_every_watched_id_comes_back(engine: HTTPEngine) -> None:
    """The server cuts each position at `logprobs` entries; the last watched id must survive that."""
    rare = generated(engine, Generate(prompt(30), 6, watch_ids=WATCH))
    assert rare.watched.shape == (6, 15)
    doubled = generated(engine, Generate(prompt(30), 6, watch_ids=(rare.token_ids[0], *WATCH[::-1])))
    assert doubled.watched[0, 0] == pytest.approx(rare.token_logprobs[0], abs=1e-5)
    np.testing.assert_allclose(doubled.watched[:, :0:-1], rare.watched, atol=1e-5)
    ids = tuple(range(engine.limits.max_watch))
    assert generated(engine, Generate(prompt(30), 2, watch_ids=ids)).watched.shape == (2, 19)
    [failed] = serve(engine, [Generate(prompt(30), 2, watch_ids=tuple(range(20)))])
    assert isinstance(failed, Failed)


def test_a_choice_of_many_of_which_some_begin_others(engine: HTTPEngine, tiny_llama: Path) -> None:
    rag = SelfRAG.from_pretrained(tiny_llama, engine=engine)
    words = [f"{start}{end}" for start in range(100, 120) for end in ("", " and", " and so on")]
    answer = rag.choose("Which?", words, evidence=[Passage("d1", "Text.")], mode="always")
    assert answer.text in words
    assert len(answer.trace.nodes) == 60
    assert sum(node.likelihood for node in answer.trace.nodes) == pytest.approx(1.0)


def test_the_end_of_the_context_and_cached_tokens_are_reported(engine: HTTPEngine) -> None:
    full = generated(engine, Generate(prompt(CONTEXT - 2), 6))
    assert (full.finish, len(full.token_ids)) == (Finish.CONTEXT, 2)
    request = Generate(prompt(100, 5), 2)
    assert [generated(engine, request).cached_tokens for _ in range(2)] == [0, 96]


def test_aborted_requests_free_the_server(engine: HTTPEngine) -> None:
    tickets = [engine.submit(Generate(prompt(10, i), 240)) for i in range(8)]
    time.sleep(0.2)
    engine.abort(tickets)
    assert isinstance(generated(engine, Generate(prompt(30), 4)), Generated)
    assert engine.step() == []


class Gateway(BaseHTTPRequestHandler):
    """Passes `/v1/` on, and knows no other path; `drop` names fields that it takes out of requests."""

    target = ""
    drop: tuple[str, ...] = ()

    def do_GET(self) -> None:
        self._answer("GET", None)

    def do_POST(self) -> None:
        self._answer("POST", self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, method: str, content: bytes | None) -> None:
        status, body = 404, b'{"detail": "Not Found"}'
        if self.path.startswith("/v1/"):
            given = None if content is None else json.loads(content)
            for name in self.drop:
                given.pop(name, None) if given else None
            reply = httpx.request(method, self.target + self.path, json=given, timeout=60)
            status, body = reply.status_code, reply.content
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gateway(vllm_server: ServedVLLM) -> Iterator[Callable[..., str]]:
    """Starts a gateway that lets only OpenAI's routes through; gives its address."""
    started = []

    def start(*drop: str) -> str:
        handler = type("Handler", (Gateway,), {"target": vllm_server.url, "drop": drop})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_both_routes_give_the_same(gateway: Callable[..., str], engine: HTTPEngine, tiny_llama: Path) -> None:
    draw = random.Random(0)
    requests = [
        Generate(
            prompt(draw.randrange(2, 60), seed) if seed % 2 else prompt(draw.randrange(2, 60)),
            draw.randrange(1, 8),
            watch_ids=WATCH if seed % 3 else (),
            stop_ids=tuple(range(seed % 5, 200, 7)) if seed % 4 == 0 else (),
            adapter="extra" if seed % 5 == 0 else None,
        )
        for seed in range(50)
    ] + [Generate(prompt(30), 1, allowed_ids=WATCH, watch_ids=WATCH)]
    stock = load(gateway(), tiny_llama)
    assert (stock._client.wire, engine._client.wire) == (COMPLETIONS, TOKENS)
    assert stock.limits == engine.limits
    ours = serve(stock, requests)
    for one, other in zip(ours, serve(engine, requests), strict=True):
        assert isinstance(one, Generated)
        assert isinstance(other, Generated)
        assert (one.token_ids, one.finish) == (other.token_ids, other.finish)
        np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, atol=1e-3)
        np.testing.assert_allclose(one.watched, other.watched, atol=1e-3)
    assert {one.finish for one in ours if isinstance(one, Generated)} >= {Finish.STOP, Finish.BUDGET}
    stock.close()


@pytest.mark.parametrize("lost", ["logprob_token_ids", "return_token_ids", "return_tokens_as_token_ids", "logprobs"])
def test_a_gateway_that_drops_a_field_is_refused_before_anything_is_asked(
    gateway: Callable[..., str], tiny_llama: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "very-secret")
    with pytest.raises(EngineError, match="gives no log-probabilities of token ids") as found:
        load(gateway(lost), tiny_llama)
    assert "very-secret" not in str(found.value)


CELL = ("--cutoff=2", "--order=ranked", "--examples=0", "--prompt=direct")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Five questions, of which two are held out as demonstrations."""
    rows = [
        {
            "id": f"q{n}",
            "task": "list",
            "instruction": f"Which rivers are in land {n}?",
            "answers": [["Aare"], ["Inn"]],
            "passages": [
                {"id": f"p{n}{name}", "title": name, "text": f"{name} is in land {n}."} for name in ("Aare", "Inn")
            ],
        }
        for n in range(5)
    ]
    path = tmp_path / "rivers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def interpret(*words: object) -> str:
    done = CliRunner().invoke(app, ["interpret", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def replies(run: GridRun) -> list[dict[str, object]]:
    found = run.records(run.cells[0])
    assert found is not None
    kept = ("id", "text", "answer", "explanation", "read", "cited", "finish", "scores", "error")
    # A server leaves out the first bytes of a character that the budget cut; the engine here shows that they are there.
    whole = [one | {key: one[key].rstrip("\ufffd") for key in ("text", "answer")} for one in found]
    return [{key: one[key] for key in kept} for one in whole]


@pytest.mark.parametrize("layout", ["plain", "selfrag"])
def test_interpretation_over_a_server_and_in_a_process_gives_the_same_replies(
    layout: str, questions: Path, vllm_server: ServedVLLM, tiny_llama: Path, tmp_path: Path
) -> None:
    plain = layout == "plain"  # a prompt as text goes to any endpoint, reflection tokens as ids to one's own server
    server = ("--endpoint", vllm_server.url) if plain else ("--engine", vllm_server.url)
    shared = ("--layout", layout, "--max-tokens", 8, *CELL)
    here, there = tmp_path / "here", tmp_path / "there"
    interpret("run", questions, "-o", here, "--model", tiny_llama, "--engine", "transformers", *shared)
    name = "tiny" if plain else tiny_llama
    page = interpret("run", questions, "-o", there, "--model", name, *server, *shared)
    assert "3 of 5 questions of rivers.jsonl" in page
    found = replies(read_grid(there))
    assert found == replies(read_grid(here))
    assert len(found) == 3
    assert all(one["error"] is None and one["text"] for one in found)

    page = interpret("faithfulness", there, "--model", name, *server)
    assert "Faithfulness: another order of the contexts" in page
    run = read_grid(there)
    asked = run.records(run.cells[0], "other-order")
    assert asked is not None
    assert [(one["error"], one["read"][0][-3:]) for one in asked] == [(None, "Inn")] * 3


def test_a_run_over_a_server_and_in_a_process_writes_the_same_answers(
    vllm_server: ServedVLLM, tiny_llama: Path, tmp_path: Path
) -> None:
    passages = [{"id": f"p{i}", "title": "Book", "text": f"Ann wrote {i}."} for i in range(2)]
    rows = [
        {"id": f"q{i}", "task": "short_qa", "instruction": f"Who wrote {i}?", "answers": ["Ann"], "passages": passages}
        for i in range(4)
    ]
    data = tmp_path / "short.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {"selfrag-always": "selfrag-always"}
    for folder, engine in (("here", "transformers"), ("there", vllm_server.url)):
        settings = {"segment_tokens": 12, "passages": 2}
        run_systems(names, Model(str(tiny_llama), engine), Source([data]).load(), tmp_path / folder, settings=settings)
    here, there = (read_records(tmp_path / one / "selfrag-always" / "short.jsonl") for one in ("here", "there"))
    kept = ("id", "text", "cited", "read", "segments", "error", "scores")
    assert [{key: one[key] for key in kept} for one in there] == [{key: one[key] for key in kept} for one in here]
    assert all(one["error"] is None and one["usage"]["requests"] for one in there)


PASSAGE = Passage("p", "The Seine flows through Paris.", "Seine")
CASES = [
    Case("Retrieve", "Which river flows through Paris?"),
    Case("Retrieve", "Which river?", "It is long.", "It is the Seine.", PASSAGE),
    Case("IsRel", "Which river flows through Paris?", evidence=PASSAGE),
    Case("IsSup", "Which river flows through Paris?", output="The Seine.", evidence=PASSAGE),
    Case("IsUse", "Which river flows through Paris?", output="The Seine <|im_end|>."),
]


def label(server: ServedVLLM, api: Api, constraint: Constraint, cases: list[Case] = CASES) -> list[Reply]:
    config = EndpointConfig(server.url, "tiny", api, constraint, retries=0, max_tokens=40, min_coverage=0.0)
    found = dict(EndpointTeacher(config).label(cases))
    return [found[position] for position in range(len(cases))]


@pytest.mark.parametrize("api", list(Api))
def test_a_teacher_holds_a_random_model_to_the_labels(vllm_server: ServedVLLM, api: Api) -> None:
    found = label(vllm_server, api, Constraint.AUTO)
    assert {reply.outcome for reply in found} == {Outcome.LABELLED}, found
    for case, reply in zip(CASES, found, strict=True):
        assert reply.label in GROUPS[case.group].names
        assert reply.constraint == Constraint.CHOICE
        assert reply.prompt_tokens > 500
        assert reply.completion_tokens > 0
    assert [r.label for r in found] == [r.label for r in label(vllm_server, api, Constraint.CHOICE)]


def test_a_schema_holds_it_where_labels_are_no_special_tokens(vllm_server: ServedVLLM) -> None:
    """The server leaves special tokens out of its text, so a reflection token is seen as no label, and set aside."""
    found = label(vllm_server, Api.CHAT, Constraint.SCHEMA)
    assert found[0].outcome is Outcome.LABELLED or "cut at max_tokens" in found[0].reason, found[0]
    assert all(reply.outcome is not Outcome.FAILED and reply.raw.startswith("{") for reply in found)


@pytest.mark.parametrize("api", list(Api))
def test_label_scoring_reads_the_log_probabilities_of_the_server(vllm_server: ServedVLLM, api: Api) -> None:
    for case, reply in zip(CASES, label(vllm_server, api, Constraint.LOGPROBS), strict=True):
        if reply.outcome is Outcome.LABELLED:
            assert reply.coverage
            assert reply.label in GROUPS[case.group].names
        else:  # a random model may have no letter among its twenty most probable tokens
            assert reply.reason.startswith("no label among the ")
            assert reply.coverage == 0.0


def test_a_case_that_does_not_fit_fails_alone(vllm_server: ServedVLLM) -> None:
    long = Case("IsUse", "What?", output="word " * 4 * CONTEXT)
    failed, fine = label(vllm_server, Api.CHAT, Constraint.CHOICE, [long, CASES[0]])
    assert (failed.outcome, fine.outcome) == (Outcome.FAILED, Outcome.LABELLED)
    assert "status 400" in failed.reason


def test_server_killed_in_the_middle_is_one_clear_line(vllm_server: ServedVLLM, tiny_llama: Path) -> None:
    """The last of this file, so that no other starts the server again."""
    engine = load(vllm_server.url, tiny_llama, retries=1, backoff=0.1)
    for i in range(7):
        engine.submit(Generate(prompt(10, i), 1000))
    threading.Timer(0.1, vllm_server.kill).start()

    def ask() -> None:
        for _ in range(1000):  # one of them is under way when the server dies
            serve(engine, [Generate(prompt(10, 9), 1000)])

    with pytest.raises(EngineError, match=f"no server at {vllm_server.url} after 2 attempts") as caught:
        ask()
    assert "\n" not in str(caught.value)
    engine.close()
