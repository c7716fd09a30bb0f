"""Chat models behind a real `vllm serve`: by token ids the answers of this process, by text answers all the same."""

from pathlib import Path

import httpx
import pytest
import tiny
from vllm_process import ServedVLLM

from retrieval.passage import Passage
from selfrag import Decoding, SelfRAG
from selfrag.judges.endpoint import EndpointExecutor
from selfrag.judges.engine import EngineExecutor
from selfrag.loading import resolve_model

pytestmark = pytest.mark.engine

SEINE = Passage("seine", "The river through Paris is the Seine.", "Seine")
MOON = Passage("moon", "In 1969 two people walked on the Moon.", "Moon")
QUESTIONS = (
    "Which river is in Paris?",
    "Who walked on the Moon?",
    "What boils at 100 degrees?",
)
SETTINGS = {"mode": "always", "max_segments": 2, "segment_tokens": 16, "beam": 2}
LIGHT = Decoding.light(segment_tokens=16)
FAMILIES = (
    "qwen",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "demo-base")),
)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    if request.param == "demo-base":
        return Path(resolve_model(request.param))
    return tiny.save_chat(
        tmp_path_factory.mktemp("chat") / request.param, request.param
    )


@pytest.fixture(scope="module")
def served(folder, tmp_path_factory):
    pytest.importorskip("vllm", reason="vllm is not installed")
    log = tmp_path_factory.mktemp("served") / "log.txt"
    line = "--dtype float32 --enforce-eager --max-num-seqs 8 --max-model-len 2048"
    line += f" --kv-cache-memory-bytes {200 << 20}"
    server = ServedVLLM(folder, log, *line.split())
    warm = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2}
    # the first request compiles kernels
    httpx.post(f"{server.url}/v1/completions", json=warm, timeout=600)
    yield server
    server.kill()


def check_equal(there, here):
    """Compare everything but the last digits of numbers."""
    assert there.text == here.text
    cited = [(segment.text, segment.citation) for segment in here.segments]
    assert [(segment.text, segment.citation) for segment in there.segments] == cited
    for node, twin in zip(there.trace.nodes, here.trace.nodes, strict=True):
        assert (node.text, node.status) == (twin.text, twin.status)
        assert node.score == pytest.approx(twin.score, abs=2e-3)
        assert node.judgments.keys() == twin.judgments.keys()
        for role, judgment in twin.judgments.items():
            judged = node.judgments[role]
            assert (judged is None) == (judgment is None)
            if judged is not None and judgment is not None:
                near = pytest.approx(judgment.distribution, abs=2e-3)
                assert judged.distribution == near


def test_answers_over_http_are_those_of_this_process(folder, served):
    evidence = [[SEINE, MOON]] * len(QUESTIONS)
    with SelfRAG.from_pretrained(folder, engine="transformers", dtype="float32") as rag:
        here = rag.generate(QUESTIONS, evidence=evidence, **SETTINGS)
        here += rag.generate(QUESTIONS, evidence=evidence, decoding=LIGHT)
    with SelfRAG.from_pretrained(f"tiny@{served.url}/v1", tokenizer=str(folder)) as rag:
        assert isinstance(rag.prompting.executor, EngineExecutor)
        there = rag.generate(QUESTIONS, evidence=evidence, **SETTINGS)
        there += rag.generate(QUESTIONS, evidence=evidence, decoding=LIGHT)
    for answer, twin in zip(there, here, strict=True):
        check_equal(answer, twin)


def test_a_server_whose_tokenizer_is_not_here_is_sent_text(served):
    with SelfRAG.from_pretrained(f"tiny@{served.url}") as rag:
        assert isinstance(rag.prompting.executor, EndpointExecutor)
        answer = rag.generate(QUESTIONS[0], evidence=[SEINE, MOON], **SETTINGS)
    assert answer.text
    assert not answer.whole_answers
    assert all(0 < node.likelihood <= 1 for node in answer.trace.nodes if node.text)
