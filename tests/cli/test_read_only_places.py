"""Commands as a user who owns neither the index nor the model folder, and may write in neither."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from retrieval import Passage, index_passages

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes"),
]
PASSAGES = [Passage(name, f"{name} is a letter.", name) for name in ("a", "b")]
WRITE = (
    "import sys, pathlib; [pathlib.Path(p, 'x').write_text('x') for p in sys.argv[1:]]"
)


@pytest.fixture(scope="module")
def unprivileged():
    """What stands before a command: as root without capabilities where the tests run as root, whom no mode stops."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("the tests run as root, and setpriv is not installed")
    return ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]


@pytest.fixture(scope="module")
def places(tiny_llama, unprivileged):
    """A model and an index of somebody else, in which nothing may be written."""
    with tempfile.TemporaryDirectory() as home:
        model, index = Path(home, "model"), Path(home, "index")
        shutil.copytree(tiny_llama, model)
        model.chmod(0o755)  # pytest and safetensors write for their owner alone
        for file in model.iterdir():
            file.chmod(0o644)
        index_passages(PASSAGES, index, encoder=model)

        def files():
            places = (model, index)
            return [file for place in places for file in (*place.rglob("*"), place)]

        def times():
            return {str(file): file.stat().st_mtime_ns for file in files()}

        for file in files():
            if os.geteuid() == 0:
                os.chown(file, 65534, 65534)
            file.chmod(stat.S_IMODE(file.stat().st_mode) & 0o555)
        refused = subprocess.run(
            [*unprivileged, sys.executable, "-c", WRITE, model],
            check=False,
            capture_output=True,
        )
        assert b"PermissionError" in refused.stderr
        before = times()
        yield {"model": str(model), "index": str(index)}
        assert times() == before
        for file in reversed(files()):
            file.chmod(0o755)


OPTIONS = "--model {model} --index {index} --engine transformers"


def program(line, places, unprivileged):
    words = line.format(**places).split()
    return [*unprivileged, sys.executable, "-m", "selfrag", *words]


def test_issue_45_ask_and_doctor_read_from_read_only_places(places, unprivileged):
    pipes = {"capture_output": True, "text": True, "check": False}
    line = f"ask alpha? {OPTIONS} --segments 1 --set mode=always --json"
    done = subprocess.run(program(line, places, unprivileged), **pipes)
    assert done.returncode == 0, done.stderr
    assert {hit["id"] for hit in json.loads(done.stdout)["retrieved"]} == {"a", "b"}
    for line in ("doctor {model}", "doctor {index}"):
        done = subprocess.run(program(line, places, unprivileged), **pipes)
        assert "Traceback" not in done.stderr
        # 1: a random model fails the checks of what it writes.
        assert done.returncode in (0, 1), done.stderr
        assert "PermissionError" not in done.stdout + done.stderr


def test_issue_45_serve_answers_from_read_only_places(places, unprivileged):
    command = program(f"serve {OPTIONS} --port 0", places, unprivileged)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes) as server:
        shown = ""
        for line in server.stdout:
            shown += line
            address = re.search(r"http://127\.0\.0\.1:[0-9]+", line)
            if address:
                break
        assert address, shown
        body = {"model": "model", "messages": [{"role": "user", "content": "Who?"}]}
        reply = httpx.post(f"{address[0]}/v1/chat/completions", json=body, timeout=120)
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=60)[0]
    assert reply.status_code == 200, reply.text
    assert "Traceback" not in shown + rest
